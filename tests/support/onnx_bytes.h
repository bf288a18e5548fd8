// Builds .onnx files byte by byte, without the importer's reader and without protobuf. So a test
// can also make files that no exporter would write.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ofsdp::onnx_bytes {

inline std::string varint(uint64_t value) {
  std::string out;
  do {
    out += static_cast<char>((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    value >>= 7;
  } while (value != 0);
  return out;
}
inline std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) * 8) + varint(value);
}
inline std::string message(int field, const std::string& body) {
  return varint(static_cast<uint64_t>(field) * 8 + 2) + varint(body.size()) + body;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}
template <typename T>
std::string raw(const std::vector<T>& values) {
  return message(9, bytes_of(values));
}
inline std::string packed_floats(const std::vector<float>& values) {
  return message(4, bytes_of(values));
}
inline std::string unpacked_floats(const std::vector<float>& values) {
  std::string out;
  for (const float value : values) out += '\x25' + bytes_of<float>({value});
  return out;
}
inline std::string packed_numbers(int field, const std::vector<uint64_t>& values) {
  std::string out;
  for (const uint64_t value : values) out += varint(value);
  return message(field, out);
}

inline std::string entry(const std::string& key, const std::string& value) {
  return message(13, message(1, key) + message(2, value));
}
inline std::string external(const std::string& location, const std::string& offset,
                            const std::string& length) {
  return entry("location", location) + (offset.empty() ? "" : entry("offset", offset)) +
         (length.empty() ? "" : entry("length", length)) + number(14, 1);
}

enum : int { kFloat = 1, kUint8 = 2, kInt64 = 7, kHalf = 10, kDouble = 11, kBfloat16 = 16 };

// A TensorProto; `data` are the data fields.
inline std::string tensor(const std::string& name, int type, const std::vector<int64_t>& dims,
                          const std::string& data) {
  std::string out;
  for (const int64_t dim : dims) out += number(1, static_cast<uint64_t>(dim));
  return out + number(2, static_cast<uint64_t>(type)) + message(8, name) + data;
}

inline std::string value_info(const std::string& name, const std::vector<int64_t>& dims) {
  std::string shape;
  for (const int64_t dim : dims) shape += message(1, number(1, static_cast<uint64_t>(dim)));
  return message(1, name) + message(2, message(1, number(1, kFloat) + message(2, shape)));
}

// A ModelProto with one Relu node from `x` to `y` and these initializers; `fields` end the graph.
inline std::string model(const std::vector<std::string>& initializers,
                         const std::string& fields = "") {
  std::string graph = message(1, message(1, "x") + message(2, "y") + message(4, "Relu"));
  graph += message(2, "main");
  for (const std::string& t : initializers) graph += message(5, t);
  graph += message(11, value_info("x", {2})) + message(12, value_info("y", {2})) + fields;
  return number(1, 8) + message(2, "test") + message(7, graph) + message(8, number(2, 17)) +
         message(14, message(1, "key") + message(2, "value"));
}

// n values that differ: from, from + 1, ...
inline std::vector<float> count_up(size_t n, float from = 0) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = from + static_cast<float>(i);
  return values;
}

// A folder that is removed after the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ofsdp_onnx_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = *this / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::filesystem::remove(path);  // ext4 flushes a file that is truncated and rewritten: slow
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

inline std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

}  // namespace ofsdp::onnx_bytes
