#include "kernels/base/escaped.h"

#include "kernels/base/format.h"

namespace ofsdp::base {
namespace {

// Bytes at `at` that are a control character: C0, delete, or C1 in UTF-8.
size_t control_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7f) return 1;
  const bool c1 = byte(at) == 0xc2 && at + 1 < text.size() && (byte(at + 1) & 0xe0) == 0x80;
  return c1 ? 2 : 0;
}

enum class Shown { kOneLine, kLines, kJson };

std::string shown(std::string_view text, Shown how) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); ++at) {
    const bool plain = how != Shown::kOneLine && text[at] == '\n';
    const size_t control = plain ? 0 : control_bytes(text, at);
    if (control == 0) out += text[at];
    if (control != 0 && how == Shown::kJson) {  // the last byte is the character's number
      out += format_text("\\u{:04x}", static_cast<unsigned char>(text[at + control - 1]));
    }
    for (size_t i = 0; i < control && how != Shown::kJson; ++i) {
      out += format_text("\\x{:02x}", static_cast<unsigned char>(text[at + i]));
    }
    at += control == 2 ? 1 : 0;
  }
  return out;
}

}  // namespace

std::string escaped(std::string_view text) { return shown(text, Shown::kOneLine); }
std::string escaped_lines(std::string_view text) { return shown(text, Shown::kLines); }
std::string escaped_json(std::string_view text) { return shown(text, Shown::kJson); }

void print_lines(std::FILE* stream, std::string_view text) {
  const std::string lines = escaped_lines(text);
  std::fwrite(lines.data(), 1, lines.size(), stream);
}

}  // namespace ofsdp::base
