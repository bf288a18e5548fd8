// The keys of a column of images, classes or members of shards, in the YAML mapping of data.
#pragma once

#include "runtime/data/data_spec.h"
#include "runtime/data/yaml_place.h"

namespace ofsdp::runtime {

std::span<const char* const> image_keys();
bool is_image_key(const std::string& key);

// REQUIRES: is_image_key(key).
Status read_image_key(const Place& place, const std::string& key, const YAML::Node& value,
                      ColumnSpec& column);

// Checks all keys of the column together, and decides by the member what it holds.
Status check_images(const Place& place, const YAML::Node& node, ColumnSpec& column);

// Makes the paths of a column of images relative to `folder`, which has the YAML file.
void place_images(const std::string& folder, ColumnSpec& column);

}  // namespace ofsdp::runtime
