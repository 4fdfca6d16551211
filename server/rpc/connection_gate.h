#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace strata::rpc {

// Listens on an address and accepts its connections, on a thread of its own, as long as this
// process has descriptors to spare. gRPC 1.51 accepts by itself until there is no descriptor left,
// and then never again.
class ConnectionGate {
 public:
  // Takes over an accepted, non-blocking connection.
  using Handler = std::function<void(int listener, int connection)>;
  struct Options {
    // A connection whose descriptor is this number or above is closed at once. The kernel gives the
    // lowest free number, so no more connections than this are ever open, and descriptors below the
    // process's limit stay free for files.
    int descriptor_max = 1024;
    Handler admit;
    std::function<void()> on_refused;
  };

  // Binds every address of "HOST:PORT"; with port 0, all to the port that the first one gets.
  // Unavailable, naming the address, where that fails. Nothing is accepted before Open.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const std::string& address);
  virtual ~ConnectionGate() = default;  // stops listening

  virtual const std::string& address() const = 0;  // with the port that was bound
  virtual void Open(Options options) = 0;          // once
  virtual void Close() = 0;                        // accepts nothing from here on
  // Ends what is sent on every connection that came through, after all that is on its way; clients
  // then close theirs. How many are still open. After Close.
  virtual int HangUp() = 0;
};

// Raises this process's limit of open descriptors as far as it may; what it is then.
int RaiseDescriptorLimit();

}  // namespace strata::rpc
