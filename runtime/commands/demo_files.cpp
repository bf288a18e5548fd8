#include "runtime/commands/demo_files.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "importer/file/wire.h"
#include "runtime/data/counter_random.h"
#include "runtime/data/npy_header.h"

namespace ofsdp::runtime {
namespace {

constexpr uint64_t kDemoSeed = 20;
constexpr int kSide = 16, kDigits = 10, kRows = 7, kColumns = 5;

// A font of dots: a row of a digit is five bits, the left dot the highest.
constexpr std::array<std::array<uint8_t, kRows>, kDigits> kFont = {{
    {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e},
    {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f},
    {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e},
    {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02},
    {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
    {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e},
    {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
    {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e},
    {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
}};

// Draws numbers one after the other, from a key.
class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t bits() { return mix_bits(key_, next_++); }
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }

 private:
  uint64_t key_;
  uint64_t next_ = 0;
};

double dot(int digit, int row, int column) {
  if (row < 0 || row >= kRows || column < 0 || column >= kColumns) return 0;
  return kFont[static_cast<size_t>(digit)][static_cast<size_t>(row)] >> (kColumns - 1 - column) & 1;
}

// The font between its dots.
double ink(int digit, double row, double column) {
  const int r = static_cast<int>(std::floor(row)), c = static_cast<int>(std::floor(column));
  const double down = row - r, right = column - c;
  return (1 - down) * ((1 - right) * dot(digit, r, c) + right * dot(digit, r, c + 1)) +
         down * ((1 - right) * dot(digit, r + 1, c) + right * dot(digit, r + 1, c + 1));
}

// One digit, somewhere in the image, of some size, slant and darkness, with noise over it.
void draw(int digit, Draws& draws, std::vector<float>& pixels) {
  const double size = draws.uniform(1.3, 2.1), slant = draws.uniform(-0.3, 0.3);
  const double middle_x = draws.uniform(6, 9), middle_y = draws.uniform(6.5, 8.5);
  const double darkness = draws.uniform(0.5, 1);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double row = (y - middle_y) / size;
      const double column = (x - middle_x) / size + slant * row;
      const double value = darkness * ink(digit, row + (kRows - 1) / 2.0, column + 2.0);
      pixels.push_back(static_cast<float>(value + draws.uniform(-0.25, 0.25)));
    }
  }
}

template <typename T>
std::string little_endian(const std::vector<T>& values) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Status write_samples(const std::string& folder, int64_t first, int64_t count) {
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (int64_t sample = first; sample < first + count; ++sample) {
    Draws draws(mix_bits(kDemoSeed, static_cast<uint64_t>(sample)));
    labels.push_back(static_cast<int64_t>(draws.bits() % kDigits));
    draw(static_cast<int>(labels.back()), draws, pixels);
  }
  OFSDP_RETURN_IF_ERROR(write_demo_file(
      folder + "/image.npy",
      npy_header(DType::kFloat32, {count, 1, kSide, kSide}) + little_endian(pixels)));
  return write_demo_file(folder + "/labels.npy",
                         npy_header(DType::kInt64, {count}) + little_endian(labels));
}

// The messages of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, with its field numbers.

using importer::bytes_field;
using importer::int_field;
using Axes = std::vector<int64_t>;

constexpr int64_t kFloatType = 1;  // ONNX's number

std::string attribute(const std::string& name, const std::vector<int64_t>& values) {
  constexpr int64_t kInts = 7;
  std::string body = bytes_field(1, name);
  for (const int64_t value : values) body += int_field(8, value);
  return body + int_field(20, kInts);
}

std::string attribute(const std::string& name, int64_t value) {
  constexpr int64_t kInt = 2;
  return bytes_field(1, name) + int_field(3, value) + int_field(20, kInt);
}

std::string declared(const std::string& name, const Axes& axes) {
  std::string shape = bytes_field(1, bytes_field(2, "batch"));
  for (const int64_t axis : axes) shape += bytes_field(1, int_field(1, axis));
  const std::string tensor = int_field(1, kFloatType) + bytes_field(2, shape);
  return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor));
}

class ModelWriter {
 public:
  // Returns the name of the output, which is that of the node.
  std::string node(const std::string& op, const std::string& name,
                   const std::vector<std::string>& inputs,
                   const std::vector<std::string>& attributes = {}) {
    std::string body;
    for (const std::string& input : inputs) body += bytes_field(1, input);
    body += bytes_field(2, name) + bytes_field(3, name) + bytes_field(4, op);
    for (const std::string& one : attributes) body += bytes_field(5, one);
    nodes_ += bytes_field(1, body);
    return name;
  }

  // Weights and bias, drawn as PyTorch draws those of its layers: uniform within 1/sqrt(inputs).
  std::vector<std::string> layer(const std::string& name, const std::string& input,
                                 const Axes& shape) {
    int64_t inputs = 1;
    for (size_t axis = 1; axis < shape.size(); ++axis) inputs *= shape[axis];
    const double bound = 1 / std::sqrt(static_cast<double>(inputs));
    return {input, drawn(name + ".weight", shape, bound), drawn(name + ".bias", {shape[0]}, bound)};
  }

  std::string model(const std::string& input, const std::string& output) const {
    constexpr int64_t kIrVersion = 8, kOpset = 17;
    const std::string graph =
        nodes_ + bytes_field(2, "digits") + initializers_ + input + bytes_field(12, output);
    return int_field(1, kIrVersion) + bytes_field(2, "fsdp-run demo") + bytes_field(7, graph) +
           bytes_field(8, int_field(2, kOpset));
  }

 private:
  std::string drawn(const std::string& name, const Axes& shape, double bound) {
    int64_t count = 1;
    std::string body;
    for (const int64_t axis : shape) {
      count *= axis;
      body += int_field(1, axis);
    }
    Draws draws(mix_bits(kDemoSeed, std::string_view(name)));
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(draws.uniform(-bound, bound));
    body += int_field(2, kFloatType) + bytes_field(8, name) + bytes_field(9, little_endian(values));
    initializers_ += bytes_field(5, body);
    return name;
  }

  std::string nodes_, initializers_;
};

}  // namespace

std::string demo_model() {
  ModelWriter w;
  const std::vector<std::string> window = {attribute("kernel_shape", {2, 2}),
                                           attribute("strides", {2, 2})};
  const std::vector<std::string> same = {attribute("pads", {1, 1, 1, 1})};
  std::string x = w.node("Conv", "conv1", w.layer("conv1", "image", {8, 1, 3, 3}), same);
  x = w.node("MaxPool", "pool1", {w.node("Relu", "relu1", {x})}, window);
  x = w.node("Conv", "conv2", w.layer("conv2", x, {16, 8, 3, 3}), same);
  x = w.node("MaxPool", "pool2", {w.node("Relu", "relu2", {x})}, window);
  x = w.node("Flatten", "flatten", {x});
  x = w.node("Gemm", "fc1", w.layer("fc1", x, {64, 256}), {attribute("transB", 1)});
  x = w.node("Relu", "relu3", {x});
  x = w.node("Gemm", "logits", w.layer("fc2", x, {kDigits, 64}), {attribute("transB", 1)});
  return w.model(bytes_field(11, declared("image", {1, kSide, kSide})), declared(x, {kDigits}));
}

Status write_demo_data(const std::string& folder) {
  const std::string data = folder + "/data", eval = data + "/eval";
  std::error_code error;
  std::filesystem::create_directories(eval, error);
  if (error) return fault("{}: cannot be made: {}", eval, error.message());
  OFSDP_RETURN_IF_ERROR(write_samples(data, 0, kDemoTrainingSamples));
  return write_samples(eval, kDemoTrainingSamples, kDemoEvalSamples);
}

Status write_demo_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.flush() ? ok_status() : fault("{}: cannot be written", path);
}

}  // namespace ofsdp::runtime
