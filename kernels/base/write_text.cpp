#include "kernels/base/write_text.h"

#include <unistd.h>

#include <cerrno>

namespace ofsdp::base {

int write_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace ofsdp::base
