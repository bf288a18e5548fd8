#include "importer/write/model_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace model_output_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing::HasSubstr;

const std::vector<float> kBefore = count_up(20);
const std::vector<float> kAfter = count_up(20, 100.5f);

OnnxFile opened(const std::string& path) {
  Result<OnnxFile> file = OnnxFile::open(path);
  OFSDP_CHECK(file.ok(), "{}", file.error().message());
  return *std::move(file);
}

ModelOutput begun(const OnnxFile& input, const std::string& path) {
  Result<ModelOutput> output = ModelOutput::begin(input, path);
  OFSDP_CHECK(output.ok(), "{}", output.error().message());
  return *std::move(output);
}

void expect_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
}

std::vector<float> read_all(const OnnxFile& file, size_t i) {
  std::vector<float> values(static_cast<size_t>(file.initializers()[i].shape.numel()));
  expect_ok(file.read(file.initializers()[i], 0, values));
  return values;
}

// Writes kAfter to every weight with 20 elements.
void train(const OnnxFile& input, const std::string& path) {
  ModelOutput output = begun(input, path);
  for (size_t i = 0; i < input.initializers().size(); ++i) {
    if (input.initializers()[i].shape.numel() == 20) expect_ok(output.write(i, 0, kAfter));
  }
  expect_ok(output.finish());
  expect_ok(output.commit());
}

std::string weight(const std::string& name, const std::vector<float>& values) {
  return tensor(name, kFloat, {4, 5}, raw(values));
}
std::string external_weight(const std::string& location, int offset = 0) {
  return tensor("w" + std::to_string(offset), kFloat, {20},
                external(location, std::to_string(offset), "80"));
}

class ModelOutputTest : public testing::Test {
 protected:
  OnnxFile input(const std::string& bytes) { return opened(in_.write("m.onnx", bytes)); }
  static std::string error(const OnnxFile& input, const std::string& path) {
    const Status status = check_output_path(path, input);
    if (status.ok()) return "ok";
    EXPECT_EQ(status.kind(), ErrorKind::kInput);
    const Result<ModelOutput> output = ModelOutput::begin(input, path);
    EXPECT_FALSE(output.ok());
    return status.message();
  }

  Folder in_;
  Folder out_;
};

TEST_F(ModelOutputTest, DiffersFromTheInputInTheValuesAlone) {
  const std::string ints = tensor("i", kInt64, {2}, raw<int64_t>({4, 5}));
  const std::string frozen = weight("frozen", kBefore);
  auto whole = [&](const std::vector<float>& v) {
    return model({weight("a", v), ints, frozen, tensor("b", kFloat, {20}, packed_floats(v)),
                  tensor("c", kFloat, {20}, unpacked_floats(v))});
  };
  const OnnxFile file = input(whole(kBefore));
  ModelOutput output = begun(file, out_ / "t.onnx");
  for (const size_t i : {0, 2, 3}) expect_ok(output.write(i, 0, kAfter));
  expect_ok(output.finish());
  EXPECT_FALSE(std::filesystem::exists(out_ / "t.onnx"));
  expect_ok(output.commit());
  EXPECT_EQ(content(out_ / "t.onnx"), whole(kAfter));
  EXPECT_EQ(out_.files(), 1u);
}

TEST_F(ModelOutputTest, TwoRanksWriteHalves) {
  const OnnxFile file =
      input(model({weight("a", kBefore), tensor("u", kFloat, {20}, unpacked_floats(kBefore))}));
  ModelOutput rank0 = begun(file, out_ / "t.onnx");
  Result<ModelOutput> rank1 = ModelOutput::join(file, rank0.ticket());
  ASSERT_TRUE(rank1.ok());
  const std::span<const float> values = kAfter;
  for (size_t i = 0; i < 2; ++i) {
    expect_ok(rank1->write(i, 7, values.subspan(7)));
    expect_ok(rank0.write(i, 0, values.first(7)));
    expect_ok(rank0.write(i, 20, {}));
  }
  expect_ok(rank1->finish());
  expect_ok(rank0.finish());
  { const ModelOutput gone = *std::move(rank1); }  // only rank 0's end removes temporaries
  expect_ok(rank0.commit());
  EXPECT_EQ(content(out_ / "t.onnx"),
            model({weight("a", kAfter), tensor("u", kFloat, {20}, unpacked_floats(kAfter))}));
}

TEST_F(ModelOutputTest, RoundsToTheTypeOfTheFile) {
  const std::vector<float> values = {1.0f + 0x1p-11f, 1.0f + 0x3p-11f, 70000.0f, NAN, -0.0f};
  const std::vector<uint16_t> halves = {0x3c00, 0x3c02, 0x7c00, 0x7e00, 0x8000};
  const std::vector<float> near = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 3e38f, NAN, -0.0f};
  const std::vector<uint16_t> bfloats = {0x3f80, 0x3f82, 0x7f62, 0x7fc0, 0x8000};
  const std::vector<uint16_t> zeros(5);
  const OnnxFile file =
      input(model({tensor("h", kHalf, {5}, raw(zeros)), tensor("b", kBfloat16, {5}, raw(zeros)),
                   tensor("d", kDouble, {1}, raw<double>({0.0}))}));
  ModelOutput output = begun(file, out_ / "t.onnx");
  expect_ok(output.write(0, 0, values));
  expect_ok(output.write(1, 0, near));
  expect_ok(output.write(2, 0, std::span(values).first(1)));
  expect_ok(output.commit());
  EXPECT_EQ(content(out_ / "t.onnx"),
            model({tensor("h", kHalf, {5}, raw(halves)), tensor("b", kBfloat16, {5}, raw(bfloats)),
                   tensor("d", kDouble, {1}, raw<double>({1.0 + 0x1p-11}))}));
}

TEST_F(ModelOutputTest, ListsBecomeRawData) {
  const std::vector<uint64_t> numbers(300, 0x3c00);  // ones
  const std::string list = tensor("h", kHalf, {300}, packed_numbers(5, numbers));
  const std::string pieces = tensor("p", kFloat, {3}, packed_floats({1, 2}) + packed_floats({3}));
  const std::string none = tensor("none", kFloat, {0}, "");
  const OnnxFile file = input(model(
      {weight("a", kBefore), none, list, weight("b", kBefore), pieces, weight("c", kBefore)}));
  ModelOutput output = begun(file, out_ / "t.onnx");
  const Result<ModelOutput> other = ModelOutput::join(file, output.ticket());
  ASSERT_TRUE(other.ok());
  expect_ok(other->write(2, 299, std::vector<float>{2.0f}));
  for (const size_t i : {0, 3, 5}) expect_ok(other->write(i, 0, kAfter));
  expect_ok(output.commit());
  std::vector<uint16_t> halves(300, 0x3c00);
  halves[299] = 0x4000;
  EXPECT_EQ(
      content(out_ / "t.onnx"),
      model({weight("a", kAfter), none, tensor("h", kHalf, {300}, raw(halves)), weight("b", kAfter),
             tensor("p", kFloat, {3}, raw<float>({1, 2, 3})), weight("c", kAfter)}));
}

TEST_F(ModelOutputTest, ReplacesTheInput) {
  const OnnxFile file = input(model({weight("a", kBefore)}));
  train(file, file.path());
  EXPECT_EQ(content(file.path()), model({weight("a", kAfter)}));
  EXPECT_EQ(read_all(file, 0), kBefore);  // an open file keeps the old values
}

TEST_F(ModelOutputTest, DiscardsWhatIsNotCommitted) {
  const OnnxFile file = input(model({weight("a", kBefore)}));
  out_.write("t.onnx", "older");
  {
    ModelOutput output = begun(file, out_ / "t.onnx");
    expect_ok(output.write(0, 0, kAfter));
    EXPECT_EQ(out_.files(), 2u);
  }
  EXPECT_EQ(out_.files(), 1u);
  EXPECT_EQ(content(out_ / "t.onnx"), "older");
}

TEST_F(ModelOutputTest, RemovesTemporariesThatNobodyHasLockedOnly) {
  const std::string stale = ".t.onnx.0123456789abc.tmp", alive = ".t.onnx.fedcba9876543.tmp";
  const std::string folder = ".t.onnx.00000000000ff.tmp";
  const std::vector<std::string> foreign = {".t.onnx.x.tmp", ".t.onnx.77.tmp",
                                            ".t.onnx.0123456789abX.tmp"};
  for (const std::string& name : {stale, alive, folder + "/part"}) out_.write(name, "");
  for (const std::string& name : foreign) out_.write(name, "");
  const UniqueFd lock(open((out_ / alive).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  train(input(model({weight("a", kBefore)})), out_ / "t.onnx");
  EXPECT_FALSE(std::filesystem::exists(out_ / stale));
  EXPECT_FALSE(std::filesystem::exists(out_ / folder));
  EXPECT_TRUE(std::filesystem::exists(out_ / alive));
  for (const std::string& name : foreign) EXPECT_TRUE(std::filesystem::exists(out_ / name)) << name;
}

// Two processes with the same number, in two containers.
TEST_F(ModelOutputTest, TemporariesOfOneTargetDoNotClash) {
  const Result<std::string> first = create_temporary(out_ / "t.onnx");
  const Result<std::string> second = create_temporary(out_ / "t.onnx");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(std::filesystem::exists(*first));
  for (const std::string& path : {*first, *second}) std::filesystem::remove(path);
}

// Each process removes stale temporaries while others make theirs, as in a save.
TEST_F(ModelOutputTest, ProcessesKeepEachOthersNewTemporaries) {
  constexpr int kProcesses = 3, kTemporaries = 300;
  std::vector<pid_t> pids;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t pid = fork();
    for (int k = 0; pid == 0 && k < kTemporaries; ++k) {
      const Result<std::string> made = create_temporary(out_ / "t.onnx");
      if (!made.ok() || unlink(made->c_str()) != 0) _exit(1);
    }
    if (pid == 0) _exit(0);
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "a temporary was gone";
  }
}

TEST_F(ModelOutputTest, KeepsTheNamesOfExternalData) {
  in_.write("w.bin", bytes_of(kBefore) + "between" + bytes_of(kBefore));
  const std::string bytes = model({external_weight("w.bin"), external_weight("w.bin", 87)});
  const OnnxFile file = input(bytes);
  for (int run = 0; run < 2; ++run) {  // the second replaces the first one's files
    train(file, out_ / "t.onnx");
    EXPECT_EQ(content(out_ / "t.onnx"), bytes);
    EXPECT_EQ(content(out_ / "w.bin"), bytes_of(kAfter) + "between" + bytes_of(kAfter));
    EXPECT_EQ(out_.files(), 2u);
  }
  EXPECT_EQ(content(in_ / "w.bin"), bytes_of(kBefore) + "between" + bytes_of(kBefore));
}

// The new name is longer, so lengths grow from one byte to two and all later offsets move.
TEST_F(ModelOutputTest, NamesExternalDataAfterTheOutputBesideTheInput) {
  in_.write("w", bytes_of(kBefore) + bytes_of<int64_t>({7, 8}));
  const std::string name = std::string(90, 'n') + ".onnx";
  auto whole = [&](const std::string& location, const std::vector<float>& v) {
    return model({weight("a", v), external_weight(location),
                  tensor("i", kInt64, {2}, external(location, "80", "16")), weight("b", v)});
  };
  const OnnxFile file = input(whole("w", kBefore));
  const std::string before = content(in_ / "m.onnx");
  train(file, in_ / name);
  EXPECT_EQ(content(in_ / name), whole(name + ".data", kAfter));
  EXPECT_EQ(content(in_ / (name + ".data")), bytes_of(kAfter) + bytes_of<int64_t>({7, 8}));
  EXPECT_EQ(content(in_ / "w"), bytes_of(kBefore) + bytes_of<int64_t>({7, 8}));
  EXPECT_EQ(content(in_ / "m.onnx"), before);
  const OnnxFile again = opened(in_ / name);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(read_all(again, i), kAfter);
}

TEST_F(ModelOutputTest, NamesTwoDataFilesAndSparesTheInputs) {
  in_.write("t.onnx.data", bytes_of(kBefore));
  in_.write("sub/w.bin", std::string(80, '\0') + bytes_of(kBefore));
  const OnnxFile file =
      input(model({external_weight("t.onnx.data"), external_weight("sub/w.bin", 80)}));
  train(file, in_ / "t.onnx");
  EXPECT_EQ(content(in_ / "t.onnx"),
            model({external_weight("t.onnx.1.data"), external_weight("t.onnx.2.data", 80)}));
  EXPECT_EQ(content(in_ / "t.onnx.1.data"), bytes_of(kAfter));
  EXPECT_EQ(content(in_ / "t.onnx.data"), bytes_of(kBefore));
}

TEST_F(ModelOutputTest, SparesDataOfAnotherModel) {
  in_.write("w.bin", bytes_of(kBefore));
  out_.write("w.bin", "of another model");
  train(input(model({external_weight("w.bin")})), out_ / "t.onnx");
  EXPECT_EQ(content(out_ / "w.bin"), "of another model");
  EXPECT_EQ(content(out_ / "t.onnx.data"), bytes_of(kAfter));
  EXPECT_EQ(content(out_ / "t.onnx"), model({external_weight("t.onnx.data")}));
}

TEST_F(ModelOutputTest, RefusesPathsThatCannotBeWritten) {
  const OnnxFile file = input(model({weight("a", kBefore)}));
  out_.write("file", "");
  mkfifo((out_ / "pipe").c_str(), 0600);
  EXPECT_THAT(error(file, out_ / "gone/t.onnx"),
              HasSubstr("gone/t.onnx: cannot be written: expected a folder " + (out_ / "gone") +
                        ", found none"));
  EXPECT_THAT(error(file, out_ / "file/t.onnx"), HasSubstr("found a file"));
  EXPECT_THAT(error(file, out_.path()), HasSubstr("expected a path of a file, found a folder"));
  EXPECT_THAT(error(file, out_.path() + "/"), HasSubstr("found a folder"));
  EXPECT_THAT(error(file, ""), HasSubstr("found an empty one"));
  EXPECT_THAT(error(file, out_ / "pipe"), HasSubstr("expected a regular file, found a device"));
  EXPECT_THAT(error(file, "/dev/null"), HasSubstr("found a device or pipe"));
  EXPECT_THAT(error(file, "/proc/t.onnx"), HasSubstr("/proc/t.onnx: cannot be written: /proc/."));
  EXPECT_THAT(error(file, out_ / std::string(250, 'n')), HasSubstr("File name too long"));
  EXPECT_EQ(error(file, out_ / "t.onnx"), "ok");
  EXPECT_EQ(out_.files(), 2u);
}

TEST_F(ModelOutputTest, RefusesToDestroyExternalDataOfTheInput) {
  in_.write("w.bin", bytes_of(kBefore));
  const OnnxFile file = input(model({external_weight("w.bin")}));
  EXPECT_THAT(error(file, in_ / "m.onnx"),
              HasSubstr("expected another file than the input, which has external data in w.bin"));
  EXPECT_THAT(error(file, in_ / "w.bin"), HasSubstr("it holds the external data of the input"));
  EXPECT_EQ(in_.files(), 2u);
}

TEST_F(ModelOutputTest, RefusesWeightsThatShareBytes) {
  in_.write("w.bin", std::string(200, '\0'));
  const OnnxFile file = input(model({external_weight("w.bin", 76), external_weight("w.bin", 0)}));
  EXPECT_THAT(error(file, out_ / "t.onnx"),
              HasSubstr("'w0' (to byte 80) and 'w76' (from byte 76) share bytes"));
}

TEST_F(ModelOutputTest, AnInputCutShortIsAFaultAndLeavesNothing) {
  const OnnxFile file = input(model({weight("a", kBefore)}));
  std::filesystem::resize_file(file.path(), 50);
  const Result<ModelOutput> output = ModelOutput::begin(file, out_ / "t.onnx");
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().kind(), ErrorKind::kFault);
  EXPECT_THAT(output.error().message(), HasSubstr("was cut short while in use"));
  EXPECT_EQ(out_.files(), 0u);
}

TEST_F(ModelOutputTest, ATicketOfAnotherModelIsAFault) {
  const OnnxFile file = input(model({weight("a", kBefore)}));
  const Result<ModelOutput> output = ModelOutput::join(file, "");
  ASSERT_FALSE(output.ok());
  EXPECT_THAT(output.error().message(), HasSubstr("expected 1 names"));
}

}  // namespace model_output_test
}  // namespace ofsdp
