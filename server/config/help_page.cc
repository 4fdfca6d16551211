#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/config/load_options.h"
#include "server/config/option_table.h"

namespace strata {
namespace {

constexpr size_t kColumns = 88;

constexpr char kTop[] = R"(NAME
    strata-server - serve a language model over gRPC, its KV cache on a ladder of
    precisions

SYNOPSIS
    strata-server --model=FILE.gguf [OPTION]...
    strata-server --config=FILE [OPTION]...
    strata-server --help | --version

DESCRIPTION
    Serves text generation (strata.v1.InferenceService) from a GGUF model. The keys and
    values of long contexts move down a ladder of tiers and lose bits on the way: hot
    pages are F16, warm pages 4 bits in memory, cold pages 2 bits on disk. Attention
    reads each page as it is stored.

    The server listens at once and is live; it is ready, by grpc.health.v1 and /readyz,
    when the model is loaded. Until then requests get UNAVAILABLE.

OPTIONS
    --config=FILE
        A YAML file with a line 'name: value' for any option below, named as here
        without the dashes. What --print-config prints is such a file.

    --print-config
        Print the effective configuration, and where each value came from, and exit.

    -h, --help
        Print this page and exit.

    --version
        Print the version and exit.
)";

constexpr char kBottom[] = R"(
    Sizes are bytes, or take a unit: KiB, MiB, GiB, TiB, or KB, MB, GB, TB. Times take a
    unit: ms, s, m, h. A flag wins over the environment, the environment over the file,
    the file over the default.

FILES
    --model         The model; only read.
    --cold-path     The cold tier, preallocated to --cold-bytes, mode 0600.
    --basis-cache   The measured basis of each model, a few MiB.
    --address-file  The bound addresses, for scripts.

ENVIRONMENT
    STRATA_CONFIG
        The file of --config.
    STRATA_NAME
        Any option: upper case, dashes as underscores, as in STRATA_HOT_BYTES=2GiB.
    STRATA_FORCE_ISA
        What --isa=auto takes instead of the best this CPU has.

SIGNALS
    SIGTERM, SIGINT
        Drain: stop being ready, refuse new requests with UNAVAILABLE, let running ones
        finish for at most --drain-timeout, exit. A second one exits at once.

EXIT STATUS
    0    Drained, every request finished.
    1    The server could not start or go on; the log says why.
    2    A wrong flag, environment variable or configuration file.
    3    Drained, but requests were cut off at --drain-timeout.
    128+N
         A second signal N came while draining.

EXAMPLES
    Serve a model to this machine:
        strata-server --model=SmolLM2-135M-Instruct.Q4_1.gguf

    Keep 1024 tokens of each sequence exact, 8192 at 4 bits, and the rest on disk:
        strata-server --model=m.gguf --hot-window=1024 --warm-window=8192 \
            --cold-path=/var/lib/strata/cold --cold-bytes=64GiB

    Keep a configuration, and use it:
        strata-server --model=m.gguf --hot-bytes=2GiB --print-config > strata.yaml
        strata-server --config=strata.yaml
)";

// `text` in lines of at most kColumns, each after `indent` spaces.
std::string Wrap(const std::string& text, size_t indent) {
  std::string page;
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) absl::StrAppend(&page, std::string(indent, ' '), line, "\n");
    line.clear();
  };
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kColumns) flush();
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  flush();
  return page;
}

std::string Describe(const OptionSpec& spec) {
  const std::string value = spec.is_switch() ? "" : absl::StrCat("=", spec.value);
  const std::string initial = spec.get(ServerOptions{});
  return absl::StrCat("\n    --", spec.name, value, "\n", Wrap(spec.help, 8),
                      Wrap(absl::StrCat("Default: ", initial.empty() ? "empty" : initial, "."), 8));
}

}  // namespace

std::string HelpPage() {
  std::string page = kTop;
  std::string group;
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.group != group) absl::StrAppend(&page, "\n  ", spec.group, "\n");
    group = spec.group;
    absl::StrAppend(&page, Describe(spec));
  }
  return absl::StrCat(page, kBottom);
}

}  // namespace strata
