// ONNX Runtime's checkpoint file: the contents of one written by ONNX Runtime, a file of ours read
// again, and damage at every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace ort_checkpoint_test {

std::string recorded() {
  return onnx_bytes::content(OFSDP_SOURCE_DIR "/tests/fixtures/artifacts/mlp_adamw/checkpoint");
}

Result<OrtCheckpoint> read(const std::string& bytes) {
  return read_ort_checkpoint(std::as_bytes(std::span(bytes)));
}

float number(const std::string& bytes, const OrtTensor& tensor, size_t element) {
  float value = 0;
  std::memcpy(&value, bytes.data() + tensor.offset + 4 * element, sizeof(value));
  return value;
}

// Every tensor in a checkpoint.
std::vector<OrtTensor> tensors(const OrtCheckpoint& checkpoint) {
  std::vector<OrtTensor> list = checkpoint.trained;
  list.insert(list.end(), checkpoint.frozen.begin(), checkpoint.frozen.end());
  if (!checkpoint.optimizer) return list;
  for (const OrtParameterState& state : checkpoint.optimizer->parameters) {
    list.insert(list.end(), state.moments.begin(), state.moments.end());
  }
  return list;
}

TEST(OrtCheckpointTest, ReadsWhatOnnxRuntimeWrote) {
  const auto read_one = read(recorded());
  ASSERT_TRUE(read_one.ok()) << read_one.error().message();
  EXPECT_EQ(read_one->trained.size(), 6u);
  EXPECT_EQ(read_one->frozen.size(), 0u);
  const auto weight = std::ranges::find(read_one->trained, "fc1.weight", &OrtTensor::name);
  ASSERT_NE(weight, read_one->trained.end());
  EXPECT_EQ(weight->shape, (Shape{32, 8}));
  EXPECT_EQ(weight->bytes, 1024);
  ASSERT_TRUE(read_one->optimizer.has_value());
  EXPECT_EQ(read_one->optimizer->step, 3);
  EXPECT_EQ(read_one->optimizer->learning_rate, 1e-3f);
  const OrtParameterState* state = read_one->state_of("fc3.bias");
  ASSERT_NE(state, nullptr);
  ASSERT_EQ(state->moments.size(), 2u);
  EXPECT_EQ(state->moments[1].name, "momentum1");
  EXPECT_GT(number(recorded(), state->moments[1], 0), 0.0f);  // of squared gradients
}

// A file as OrtOutput puts it together.
std::string written(OrtCheckpoint& checkpoint) {
  auto text = describe_ort_checkpoint(checkpoint);
  EXPECT_TRUE(text.ok());
  std::string file = *text;
  for (const OrtTensor& tensor : tensors(checkpoint)) {
    file.resize(static_cast<size_t>(tensor.offset), '\0');
    const auto length = static_cast<uint32_t>(tensor.bytes);
    std::memcpy(file.data() + tensor.offset - 4, &length, sizeof(length));
    file.append(static_cast<size_t>(tensor.bytes), static_cast<char>(tensor.name.size()));
  }
  return file;
}

TEST(OrtCheckpointTest, WhatWeWriteReadsBack) {
  OrtCheckpoint checkpoint;
  checkpoint.trained = {{"w", 1, Shape{3, 5}, 0, 60}, {"scalar", 1, Shape{}, 0, 4}};
  checkpoint.frozen = {{"ids", 7, Shape{1, 2}, 0, 16}, {"none", 1, Shape{0}, 0, 0}};
  checkpoint.optimizer =
      OrtOptimizerState{"group0", 41, 0.5f, {{"w", {{"momentum0", 1, Shape{3, 5}, 0, 60}}}}};
  checkpoint.properties = {{"epoch", int64_t{7}}, {"best", 0.25f}, {"who", std::string("me")}};
  const std::string file = written(checkpoint);
  const auto again = read(file);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(tensors(*again).size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const OrtTensor expected = tensors(checkpoint)[i], found = tensors(*again)[i];
    EXPECT_EQ(found.name, expected.name);
    EXPECT_EQ(found.shape, expected.shape);
    EXPECT_EQ(found.onnx_type, expected.onnx_type);
    EXPECT_EQ(found.offset, expected.offset);
    EXPECT_EQ(found.offset % 16, 0);
  }
  EXPECT_EQ(again->optimizer->step, 41);
  EXPECT_EQ(again->optimizer->group, "group0");
  ASSERT_EQ(again->properties.size(), 3u);
  EXPECT_EQ(std::get<int64_t>(again->properties[0].value), 7);
  EXPECT_EQ(std::get<float>(again->properties[1].value), 0.25f);
  EXPECT_EQ(std::get<std::string>(again->properties[2].value), "me");
}

// An accepted file names only bytes that exist.
void expect_inside(const std::string& bytes) {
  const auto found = read(bytes);
  if (!found.ok()) {
    EXPECT_EQ(found.error().kind(), ErrorKind::kInput);
    EXPECT_EQ(found.error().message().find('\n'), std::string::npos);
    return;
  }
  for (const OrtTensor& tensor : tensors(*found)) {
    EXPECT_GE(tensor.offset, 0);
    EXPECT_LE(tensor.offset + tensor.bytes, static_cast<int64_t>(bytes.size()));
  }
}

TEST(OrtCheckpointTest, EveryLengthIsReadOrRefused) {
  const std::string whole = recorded();
  for (size_t length = 0; length < whole.size(); length += 13) {
    expect_inside(whole.substr(0, length));
  }
  EXPECT_FALSE(read(whole.substr(0, whole.size() / 2)).ok());
}

TEST(OrtCheckpointTest, DamagedBytesAreReadOrRefused) {
  const std::string whole = recorded();
  std::mt19937 random(1);
  for (int trial = 0; trial < 4000; ++trial) {
    std::string bytes = whole;
    for (int i = 0; i < 3; ++i) {
      const bool head = random() % 2 == 0;  // where the tables begin
      bytes[random() % (head ? 256 : bytes.size())] = static_cast<char>(random());
    }
    expect_inside(bytes);
  }
}

TEST(OrtCheckpointTest, SaysWhatItIsNot) {
  std::string bytes = recorded();
  bytes[4] = 'X';
  EXPECT_NE(read(bytes).error().message().find("identifier ODTC"), std::string::npos);
  OrtCheckpoint twice;
  twice.trained = {{"w", 1, Shape{1}, 0, 4}, {"w", 1, Shape{1}, 0, 4}};
  EXPECT_NE(read(written(twice)).error().message().find("'w' is there twice"), std::string::npos);
  OrtCheckpoint version;
  version.version = 9;
  EXPECT_NE(read(written(version)).error().message().find("found 9"), std::string::npos);
  OrtCheckpoint sizes;
  sizes.trained = {{"w", 1, Shape{3}, 0, 16}};
  EXPECT_NE(read(written(sizes)).error().message().find("expected 3 elements"), std::string::npos);
}

}  // namespace ort_checkpoint_test
}  // namespace ofsdp
