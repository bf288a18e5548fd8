// A writer for .tar archives in tests.
#pragma once

#include <string>

#include "tests/support/namespaces.h"

namespace ofsdp::testing_data {

inline std::string octal(size_t value, size_t digits) {
  std::string text;
  for (size_t i = 0; i < digits; ++i, value /= 8) text.insert(text.begin(), "01234567"[value % 8]);
  return text;
}

inline std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

inline std::string with_checksum(std::string header) {
  header.replace(148, 8, 8, ' ');
  size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  return header.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
}

// A member in ustar form; `stated`: the size in the header.
inline std::string tar_entry(const std::string& name, const std::string& bytes, char type = '0',
                             const std::string& stated = "") {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  const std::string size = stated.empty() ? octal(bytes.size(), 11) : stated;
  header.replace(124, size.size(), size);
  header[156] = type;
  header.replace(257, 8, std::string("ustar\00000", 8));
  return with_checksum(header) + padded(bytes);
}

inline const std::string kTarEnd(1024, '\0');

}  // namespace ofsdp::testing_data
