// Files of training data for tests: a folder that goes away with the test, and writers for .npy,
// IDX and gzip that share no code with the readers under test.
//
// Ownership: TempFolder owns its folder on disk. Threads: one. Errors: none, a failing write shows
// in the test that reads.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing_data {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ofsdp_data_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_; }
  // Writes the bytes and gives the file's path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

 private:
  std::string path_;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string npy_header(const std::string& descr, const std::string& shape, int version = 1,
                              const std::string& fortran = "False") {
  std::string text =
      "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  const size_t start = version == 1 ? 10 : 12;
  text.resize((start + text.size() + 1 + 63) / 64 * 64 - start - 1, ' ');
  text += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (size_t i = 0; i < start - 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return bytes + text;
}

template <typename T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values,
                int version = 1) {
  return npy_header("'" + descr + "'", shape, version) + bytes_of(values);
}

// `elements`: as in the file, big-endian.
inline std::string idx(int type, const std::vector<uint32_t>& axes, const std::string& elements) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(axes.size())};
  for (uint32_t axis : axes) {
    for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(axis >> shift & 0xff);
  }
  return bytes + elements;
}

inline std::string gzipped(const std::string& bytes) {
  z_stream stream{};
  (void)deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  (void)deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

template <typename T>
std::vector<T> counted(size_t count, T first = T{0}) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(first + static_cast<T>(i));
  return values;
}

// Expects an input error; every fact must be in the message, on one line.
inline void expect_input_error(const Status& status, const std::vector<std::string>& facts) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), ErrorKind::kInput);
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  for (const std::string& fact : facts) {
    EXPECT_THAT(status.message(), ::testing::HasSubstr(fact));
  }
}

template <typename T>
void expect_input_error(Result<T> result, const std::vector<std::string>& facts) {
  expect_input_error(std::move(result).status(), facts);
}

}  // namespace ofsdp::testing_data
