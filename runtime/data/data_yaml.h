// Between the readers of the YAML mapping of data: data_yaml.cpp has the keys of all columns,
// image_keys.cpp those of images. A value carries its place in the file, for messages:
// "mnist.yaml:3: train.input: expected ...".
//
// Errors are kInput. yaml-cpp throws; parse_data_yaml (data_spec.h) catches its exceptions.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/names.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// A node's position for messages: "mnist.yaml:3: train.input".
struct Place {
  std::string origin;
  std::string path;

  std::string at(const YAML::Node& node) const {
    const std::string line = format_text("{}:{}", origin, node.Mark().line + 1);
    return path.empty() ? line : line + ": " + path;
  }
  Place below(const std::string& key) const {
    return {origin, path.empty() ? key : path + "." + key};
  }
};

inline std::string found_text(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  return node.IsScalar() ? format_text("'{}'", node.Scalar()) : "nothing";
}

inline Status wrong(const Place& place, const YAML::Node& node, const char* expected) {
  const std::string beyond = node.IsScalar() ? out_of_range_hint(node.Scalar()) : "";
  return input_error("{}: expected {}, found {}{}", place.at(node), expected, found_text(node),
                     beyond);
}

template <typename T>
Result<T> scalar(const Place& place, const YAML::Node& node, const char* expected) {
  T value{};
  if (node.IsScalar() && YAML::convert<T>::decode(node, value)) return value;
  return wrong(place, node, expected);
}

inline Result<int64_t> positive(const Place& place, const YAML::Node& node) {
  const char* expected = "a whole number of at least 1";
  OFSDP_ASSIGN_OR_RETURN(const int64_t value, scalar<int64_t>(place, node, expected));
  if (value < 1) return wrong(place, node, expected);
  return value;
}

// The keys of a column that reads images, classes (names of folders) or members of .tar shards.
// Such a column has ColumnSpec::images.
std::span<const char* const> image_keys();
bool is_image_key(const std::string& key);

// Reads the value of one key into `column`; `place` is that of the value. REQUIRES:
// is_image_key(key).
Status read_image_key(const Place& place, const std::string& key, const YAML::Node& value,
                      ColumnSpec& column);

// Checks that the keys of the column fit together, once all are read. Finds the member of the
// shards if the column names none, and sets ImageSource::classes if that member is a class. `node`:
// the column's mapping. REQUIRES: column.images.
Status check_images(const Place& place, const YAML::Node& node, ColumnSpec& column);

// Joins `folder`, in which the YAML file lies, with the column's paths. REQUIRES: column.images.
void place_images(const std::string& folder, ColumnSpec& column);

}  // namespace ofsdp::runtime
