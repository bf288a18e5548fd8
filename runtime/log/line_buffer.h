// LineBuffer: text built in a buffer of its own, without allocating.
//
// Ownership: owns its buffer. Threads: one. Errors: none; text that does not fit is cut off.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace ofsdp::runtime {

class LineBuffer {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    const size_t room = buffer_.size() - size_;
    const auto result =
        fmt::format_to_n(buffer_.data() + size_, room, format, std::forward<Args>(args)...);
    size_ += std::min(room, result.size);
    cut_off_ = cut_off_ || result.size > room;
  }
  void cut(size_t width) { size_ = std::min(size_, width); }
  std::string_view view() const { return {buffer_.data(), size_}; }
  bool cut_off() const { return cut_off_; }

 private:
  std::array<char, 4096> buffer_;
  size_t size_ = 0;
  bool cut_off_ = false;
};

}  // namespace ofsdp::runtime
