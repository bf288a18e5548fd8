#include "runtime/train/setup/image_inputs.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

bool has_pixels(const ColumnSpec& column) { return column.images && column.images->has_pixels(); }

// The axes of a row; -1 for an open one.
std::vector<int64_t> declared_row(const Value& input) {
  std::vector<int64_t> axes;
  for (size_t i = 1; i < input.declared.size(); ++i) axes.push_back(input.declared[i].size);
  return axes;
}

bool takes_classes(const Value& input) {
  return is_integer(input.desc.dtype) && input.desc.dtype != DType::kUInt8 &&
         declared_row(input).empty();
}

Status name_pixels(ColumnSet& set, ColumnSpec& column, const Graph& graph) {
  std::vector<std::string> names;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (set.find(input.name) == nullptr && !takes_classes(input)) names.push_back(input.name);
  }
  if (names.size() == 1) {
    column.name = names[0];
    return ok_status();
  }
  return input_error(
      "{}: expected one graph input for the images, found {}{}; a YAML file for --data "
      "names it: train: {{NAME: {{images: {}}}}}",
      set.origin, names.empty() ? "none" : "several: ", joined(names, ", "), column.path);
}

bool is_depth(int64_t axis) { return axis == 1 || axis == 3; }

void fit_size(ImageSource& images, int64_t height, int64_t width) {
  if (images.height || height < 1 || width < 1) return;
  images.height = height;
  images.width = width;
}

// Rows of [C, H, W] or [H, W, C]; of [H, W]; or flat.
void fit_axes(ColumnSpec& column, const std::vector<int64_t>& axes) {
  ImageSource& images = *column.images;
  const bool closed = std::ranges::all_of(axes, [](int64_t axis) { return axis > 0; });
  if (axes.size() == 3) {
    const bool last = is_depth(axes[2]) && !is_depth(axes[0]);
    if (!images.layout) images.layout = last ? ImageLayout::kHwc : ImageLayout::kChw;
    const bool planes = images.layout == ImageLayout::kChw;
    const int64_t depth = planes ? axes[0] : axes[2];
    images.wanted_channels = is_depth(depth) ? depth : 0;
    planes ? fit_size(images, axes[1], axes[2]) : fit_size(images, axes[0], axes[1]);
  } else if (axes.size() == 2 && closed) {
    images.wanted_channels = 1;
    fit_size(images, axes[0], axes[1]);
    if (!column.row) column.row = Shape(axes);
  } else if (axes.size() == 1 && closed) {
    if (!column.row) column.row = Shape(axes);
  }
}

bool has_subfolders(const ImageSource& images) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator i(images.folders[0], error), end; !error && i != end;
       i.increment(error)) {
    const std::string name = i->path().filename().string();
    std::error_code broken;
    if (!name.starts_with('.') && name != images.left_out && i->is_directory(broken)) return true;
  }
  return false;
}

// Returns a column of the images' classes, which the set may have or its first folder tells.
std::optional<ColumnSpec> classes_of(const ColumnSet& set) {
  for (const ColumnSpec& column : set.columns) {
    if (column.images && column.images->classes) return column;
  }
  const auto pixels = std::ranges::find_if(set.columns, has_pixels);
  if (pixels == set.columns.end() || pixels->images->folders.empty()) return std::nullopt;
  if (!has_subfolders(*pixels->images)) return std::nullopt;
  ColumnSpec classes;
  classes.path = pixels->path;
  classes.images = pixels->images;
  classes.images->classes = true;
  return classes;
}

std::vector<std::string> label_names(const Graph& graph, const std::vector<LossSpec>& losses) {
  std::vector<std::string> names{"labels"};
  for (const LossSpec& loss : losses) names.push_back(loss.labels);
  for (const ValueId id : graph.inputs) {
    if (takes_classes(graph.value(id))) names.push_back(graph.value(id).name);
  }
  return names;
}

}  // namespace

Status fit_images(ColumnSet& set, const Graph& graph, const std::vector<LossSpec>& losses,
                  int threads) {
  for (ColumnSpec& column : set.columns) {
    if (!column.images) continue;
    column.images->threads = threads;
    if (!has_pixels(column)) continue;
    if (column.name.empty()) OFSDP_RETURN_IF_ERROR(name_pixels(set, column, graph));
    const ValueId id = graph.find(column.name);
    if (id != 0) fit_axes(column, declared_row(graph.value(id)));
  }
  std::optional<ColumnSpec> classes = classes_of(set);
  if (!classes) return ok_status();
  for (const std::string& name : label_names(graph, losses)) {
    if (name.empty() || set.find(name) != nullptr) continue;
    classes->name = name;
    set.columns.push_back(*classes);
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
