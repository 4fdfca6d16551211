#include "tools/cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata::cli {
namespace {

// Other screen, cursor off; and back.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[2J";
constexpr std::string_view kLeave = "\033[0m\033[?25h\033[?1049l";

std::atomic<bool> active{false};
bool has_keys = false;
termios before;

void Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

FullScreen::FullScreen() {
  has_keys = isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &before) == 0;
  active.store(true);
  if (has_keys) {
    termios raw = before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // ISIG stays: ctrl-C is a signal
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  Write(kEnter);
}

FullScreen::~FullScreen() { Restore(); }

void FullScreen::Restore() {
  if (!active.exchange(false)) return;
  Write(kLeave);
  if (has_keys) tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

void FullScreen::Show(const std::vector<std::string>& lines) {
  std::string frame = "\033[H";
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&frame, i == 0 ? "" : "\r\n", lines[i], "\033[K");
  }
  Write(absl::StrCat(frame, "\033[J"));
}

char FullScreen::Key(std::chrono::milliseconds timeout) {
  if (!has_keys) {
    std::this_thread::sleep_for(timeout);
    return 0;
  }
  pollfd input{STDIN_FILENO, POLLIN, 0};
  char key = 0;
  if (poll(&input, 1, static_cast<int>(timeout.count())) <= 0) return 0;
  if (read(STDIN_FILENO, &key, 1) != 1) {
    has_keys = false;  // closed
    return 0;
  }
  return key;
}

FrameSize TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return {};
  }
  return {size.ws_row, size.ws_col};
}

bool LocaleHasUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = absl::AsciiStrToLower(value);
    return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
  }
  return false;
}

}  // namespace strata::cli
