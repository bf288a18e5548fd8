#include <errno.h>  // program_invocation_name
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fsdp/comm/rank_identity.h"
#include "importer/file/wire.h"
#include "kernels/base/process.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/data/column_file.h"
#include "runtime/data/sampler.h"

namespace ofsdp::runtime {
namespace {

// The files of `fsdp-run demo`: digits.onnx, a small convolutional network with random weights
// (image float32 [batch, 1, 16, 16] -> logits [batch, 10]), and digits drawn from a font with 5 x 7
// dots: data/image.npy and labels.npy with 2,000 training samples, and 500 others in data/eval/.
// Everything follows from one fixed seed. One process at a time may write a folder.

constexpr int64_t kDemoTrainingSamples = 2000;
constexpr int64_t kDemoEvalSamples = 500;

constexpr uint64_t kDemoSeed = 20;
constexpr int kSide = 16, kDigits = 10, kRows = 7, kColumns = 5;

// A dot font: five bits for each row in a digit, the left dot is the highest bit.
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

// Draws random numbers in order, from a key.
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

// Interpolates the font between the dots.
double ink(int digit, double row, double column) {
  const int r = static_cast<int>(std::floor(row)), c = static_cast<int>(std::floor(column));
  const double down = row - r, right = column - c;
  return (1 - down) * ((1 - right) * dot(digit, r, c) + right * dot(digit, r, c + 1)) +
         down * ((1 - right) * dot(digit, r + 1, c) + right * dot(digit, r + 1, c + 1));
}

// Draws one digit at a random position, size, slant and darkness, with noise.
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

// Replaces the file with these bytes.
Status write_demo_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.flush()) return ok_status();
  return fault("{}: cannot be written: {}", path, std::strerror(errno));
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

// Messages of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, with their field numbers.

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
  // Returns the output's name, which equals the node's.
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

  // Adds weights and bias, drawn like PyTorch's default: uniform within 1/sqrt(inputs).
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

// Returns digits.onnx as bytes.
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

// Writes both sets below `folder`, which must exist.
Status write_demo_data(const std::string& folder) {
  const std::string data = folder + "/data", eval = data + "/eval";
  std::error_code error;
  std::filesystem::create_directories(eval, error);
  if (error) return fault("{}: cannot be made: {}", eval, error.message());
  OFSDP_RETURN_IF_ERROR(write_samples(data, 0, kDemoTrainingSamples));
  return write_samples(eval, kDemoTrainingSamples, kDemoEvalSamples);
}

namespace fs = std::filesystem;

using CommandWords = std::vector<std::string>;

constexpr std::string_view kMark = "#!/bin/sh\n# Written by fsdp-run demo.\n";

bool is_demo_folder(const fs::path& folder) {
  std::ifstream script(folder / "commands.sh", std::ios::binary);
  std::string start(kMark.size(), '\0');
  script.read(start.data(), static_cast<std::streamsize>(start.size()));
  return script.gcount() == static_cast<std::streamsize>(start.size()) && start == kMark;
}

Status check_demo_folder(const std::string& folder) {
  std::error_code error;
  const fs::file_status found = fs::status(folder, error);
  if (!fs::exists(found)) return {};
  if (!fs::is_directory(found)) {
    return input_error("--output-dir {}: expected a folder, found a file", folder);
  }
  const fs::directory_iterator entries(folder, error);
  if (error || entries == fs::directory_iterator() || is_demo_folder(folder)) return {};
  return input_error(
      "--output-dir {}: expected an empty folder or that of an earlier demo, found '{}' in it",
      folder, entries->path().filename().string());
}

Status make_demo_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0)
    error.assign(errno, std::generic_category());
  if (!error) return {};
  return input_error("--output-dir {}: expected a folder that can be written, found: {}", folder,
                     error.message());
}

std::vector<CommandWords> demo_commands(const std::string& folder) {
  const std::string program = program_invocation_name;
  const std::string model = folder + "/digits.onnx", trained = folder + "/trained.onnx";
  return {
      {program, "eval", model, "--loss", "cross_entropy"},
      {program, model, "--loss", "cross_entropy", "--nproc-per-node", "2", "--strategy",
       "full_shard", "--batch-size", "16", "--epochs", "6", "--lr", "0.005", "--lr-schedule",
       "cosine", "--output", trained},
      {program, "eval", trained, "--loss", "cross_entropy"},
  };
}

// Returns the commands for a user's own model.
std::string next_commands() {
  const std::string program = program_invocation_name;
  const CommandWords model{"MODEL.onnx", "--data", "DATA", "--loss", "cross_entropy"};
  const auto line = [&](const CommandWords& before, const CommandWords& after, const char* what) {
    CommandWords words = before;
    words.insert(words.end(), model.begin(), model.end());
    words.insert(words.end(), after.begin(), after.end());
    return format_text("  {}\n      {}\n", shell_line(words), what);
  };
  return "\nnow your own model:\n" +
         line({program, "doctor"}, {},
              "likely problems of model and data, each with the option that fixes it") +
         line({program, "plan"}, {}, "memory and time, before anything runs") +
         line({program}, {"--output", "TRAINED.onnx"}, "trains");
}

[[noreturn]] void become(const CommandWords& words, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(own_program().c_str(), argv.data());
  _exit(1);
}

// Runs this program with other words and waits.
Result<int> run_command(const CommandWords& words) {
  print_lines(stdout, "\n$ " + shell_line(words) + "\n");
  std::fflush(stdout);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) return fault("cannot start {}: fork: {}", words.front(), std::strerror(errno));
  if (child == 0) become(words, parent);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return fault("{} was killed by signal {}", shell_line(words), WTERMSIG(status));
}

Status refuse_as_rank() {
  OFSDP_ASSIGN_OR_RETURN(const auto identity, rank_identity_from_environment());
  if (!identity) return {};
  return input_error("fsdp-run demo: starts two ranks itself, found one that {} has started",
                     identity->started_by);
}

}  // namespace

Result<int> run_demo(const Options& options) {
  const std::string& folder = options.demo_folder;
  OFSDP_RETURN_IF_ERROR(refuse_as_rank());
  OFSDP_RETURN_IF_ERROR(check_demo_folder(folder));
  OFSDP_RETURN_IF_ERROR(make_demo_folder(folder));
  const std::vector<CommandWords> commands = demo_commands(folder);
  std::string script(kMark);
  for (const CommandWords& words : commands) script += shell_line(words) + "\n";
  OFSDP_RETURN_IF_ERROR(write_demo_file(folder + "/commands.sh", script));  // marks the folder
  OFSDP_RETURN_IF_ERROR(write_demo_file(folder + "/digits.onnx", demo_model()));
  OFSDP_RETURN_IF_ERROR(write_demo_data(folder));
  print_lines(stdout,
              format_text("wrote {}/digits.onnx, a convolutional network with random weights\n"
                          "wrote {}/data, {} images of digits to train on and {} to evaluate\n",
                          folder, folder, kDemoTrainingSamples, kDemoEvalSamples));
  for (const CommandWords& words : commands) {
    OFSDP_ASSIGN_OR_RETURN(const int status, run_command(words));
    if (status != 0) return status;
  }
  print_lines(stdout, format_text("\nThe trained file is {}/trained.onnx; the commands are in "
                                  "{}/commands.sh.\n{}",
                                  folder, folder, next_commands()));
  return 0;
}

}  // namespace ofsdp::runtime
