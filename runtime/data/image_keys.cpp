#include <algorithm>
#include <array>
#include <filesystem>

#include "runtime/data/data_yaml.h"
#include "runtime/data/image_list.h"
#include "runtime/data/images/image.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kImageKeys[] = {"images", "size",       "layout", "channels", "member", "tar",
                                      "crop",   "crop_ratio", "flip",   "mixup",    "cutmix"};

// Reads a name, or a list of names.
Result<std::vector<std::string>> read_names(const Place& place, const YAML::Node& node,
                                            const char* expected) {
  std::vector<std::string> names;
  const bool list = node.IsSequence() && node.size() > 0;
  for (size_t i = 0; i < (list ? node.size() : 1); ++i) {
    const YAML::Node one = list ? node[i] : node;
    OFSDP_ASSIGN_OR_RETURN(std::string name, scalar<std::string>(place, one, expected));
    names.push_back(std::move(name));
  }
  return names;
}

Status read_image_size(const Place& place, const YAML::Node& node, ImageSource& images) {
  constexpr int64_t kMost = 65535;
  const char* expected = "[height, width] of 1 to 65535 pixels";
  if (!node.IsSequence() || node.size() != 2) return wrong(place, node, expected);
  OFSDP_ASSIGN_OR_RETURN(images.height, scalar<int64_t>(place, node[0], expected));
  OFSDP_ASSIGN_OR_RETURN(images.width, scalar<int64_t>(place, node[1], expected));
  const bool fits = *images.height >= 1 && *images.width >= 1 && *images.height <= kMost &&
                    *images.width <= kMost;
  return fits ? ok_status()
              : input_error("{}: expected {}, found [{}, {}]", place.at(node), expected,
                            *images.height, *images.width);
}

// Reads [low, high] with 0 < low <= high <= most.
Result<std::array<double, 2>> read_bounds(const Place& place, const YAML::Node& node, double most,
                                          const char* expected) {
  if (!node.IsSequence() || node.size() != 2) return wrong(place, node, expected);
  std::array<double, 2> bounds{};
  for (size_t i = 0; i < 2; ++i) {
    OFSDP_ASSIGN_OR_RETURN(bounds[i], scalar<double>(place, node[i], expected));
  }
  const bool fits = bounds[0] > 0 && bounds[0] <= bounds[1] && bounds[1] <= most;
  if (fits) return bounds;
  return input_error("{}: expected {}, found [{}, {}]", place.at(node), expected, bounds[0],
                     bounds[1]);
}

Result<double> read_within(const Place& place, const YAML::Node& node, double most,
                           const char* expected) {
  OFSDP_ASSIGN_OR_RETURN(const double value, scalar<double>(place, node, expected));
  if (!(value >= 0 && value <= most)) return wrong(place, node, expected);
  return value;
}

bool is_augmentation_key(const std::string& key) {
  return key == "crop" || key == "crop_ratio" || key == "flip" || key == "mixup" || key == "cutmix";
}

Status read_augmentation(const Place& place, const std::string& key, const YAML::Node& value,
                         Augmentation& made) {
  constexpr double kMostRatio = 1000, kMostAlpha = 4;
  if (key == "crop") {
    OFSDP_ASSIGN_OR_RETURN(made.crop,
                           read_bounds(place, value, 1, "two parts of the area such as [0.08, 1]"));
  } else if (key == "crop_ratio") {
    OFSDP_ASSIGN_OR_RETURN(
        made.crop_ratio, read_bounds(place, value, kMostRatio, "two ratios such as [0.75, 1.333]"));
  } else if (key == "flip") {
    OFSDP_ASSIGN_OR_RETURN(made.flip, read_within(place, value, 1, "a chance from 0 to 1"));
  } else {
    OFSDP_ASSIGN_OR_RETURN((key == "mixup" ? made.mixup : made.cutmix),
                           read_within(place, value, kMostAlpha, "a number from 0 to 4"));
  }
  return ok_status();
}

// The member decides the column's kind.
Status resolve_member(const Place& place, const YAML::Node& node, ImageSource& images) {
  const std::string& member = images.member;
  if (images.shards.empty()) {
    images.classes = member == "cls";
    OFSDP_REJECT_IF(!member.empty() && !images.classes,
                    "{}: member: expected cls, the class of an image's subfolder, found '{}'",
                    place.at(node), member);
    return ok_status();
  }
  OFSDP_REJECT_IF(member.empty(), "{}: expected the key 'member' with 'tar', found none",
                  place.at(node));
  images.classes = !image_kind_of("x." + member) && !member.ends_with("npy");
  return ok_status();
}

}  // namespace

std::span<const char* const> image_keys() { return kImageKeys; }

bool is_image_key(const std::string& key) {
  return std::ranges::count(kImageKeys, std::string_view(key)) > 0;
}

Status read_image_key(const Place& place, const std::string& key, const YAML::Node& value,
                      ColumnSpec& column) {
  if (!column.images) column.images.emplace();
  ImageSource& images = *column.images;
  if (is_augmentation_key(key)) return read_augmentation(place, key, value, images.augmentation);
  if (key == "images") {
    OFSDP_ASSIGN_OR_RETURN(images.folders, read_names(place, value, "a folder"));
  } else if (key == "tar") {
    OFSDP_ASSIGN_OR_RETURN(const auto names, read_names(place, value, "a .tar file"));
    for (const std::string& name : names) {
      const auto shards = numbered_shards(name);
      if (shards.empty()) return wrong(place, value, "numbers of shards such as {000..009}");
      images.shards.insert(images.shards.end(), shards.begin(), shards.end());
    }
  } else if (key == "size") {
    return read_image_size(place, value, images);
  } else if (key == "layout") {
    OFSDP_ASSIGN_OR_RETURN(const std::string name, scalar<std::string>(place, value, "chw or hwc"));
    if (name != "chw" && name != "hwc") return wrong(place, value, "chw or hwc");
    images.layout = name == "chw" ? ImageLayout::kChw : ImageLayout::kHwc;
  } else if (key == "channels") {
    OFSDP_ASSIGN_OR_RETURN(images.channels, scalar<int64_t>(place, value, "1 or 3"));
    if (*images.channels != 1 && *images.channels != 3) return wrong(place, value, "1 or 3");
  } else {
    OFSDP_ASSIGN_OR_RETURN(images.member,
                           scalar<std::string>(place, value, "a member such as jpg, cls or npy"));
  }
  return ok_status();
}

// Keys of other files say nothing about these columns, nor those of pixels about others.
Status check_images(const Place& place, const YAML::Node& node, ColumnSpec& column) {
  ImageSource& images = *column.images;
  OFSDP_REJECT_IF(images.folders.empty() == images.shards.empty(),
                  "{}: expected one of the keys 'images' and 'tar', found {}", place.at(node),
                  images.folders.empty() ? "none" : "both");
  OFSDP_RETURN_IF_ERROR(resolve_member(place, node, images));
  const bool arrays = images.member.ends_with("npy"), pixels = !images.classes && !arrays;
  for (const auto& pair : node) {
    const std::string key = pair.first.Scalar();
    const bool scales = key == "scale" || key == "mean" || key == "std";
    const bool fits = key == "images" || key == "tar" || key == "member" || key == "shape" ||
                      (key == "one_hot" && images.classes) || (scales && !images.classes) ||
                      (pixels && is_image_key(key));
    OFSDP_REJECT_IF(!fits, "{}: '{}' is no key of {}", place.at(node), key,
                    images.classes ? "classes"
                    : arrays       ? "arrays in .tar"
                                   : "images");
  }
  return ok_status();
}

void place_images(const std::string& folder, ColumnSpec& column) {
  const std::filesystem::path base(folder);
  for (std::string& one : column.images->folders) one = (base / one).string();
  for (std::string& one : column.images->shards) one = (base / one).string();
  const bool shards = column.images->folders.empty();
  column.path = shards ? column.images->shards[0] : column.images->folders[0];
}

}  // namespace ofsdp::runtime
