// The linked program and library ([Note: hardening] in cmake/targets.cmake), as readelf sees
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/cpu/products.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace hardening_test {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing_data::TempFolder;

const std::string kProgram = OFSDP_LIBRARY_DIR "/fsdp-run";
const std::string kLibrary = OFSDP_LIBRARY_DIR "/libonnx_fsdp.so";
const std::string kBlas = OFSDP_LIBRARY_DIR "/libofsdp_openblas.so";
const Words kAvx2 = {"ONEDNN_MAX_CPU_ISA=AVX2", "OFSDP_MAX_CPU_ISA=AVX2"};

std::string readelf(const Words& flags, const std::string& file) {
  const Finished run = Program::run(Words{"readelf"} + flags + Words{file});
  EXPECT_EQ(run.status, 0) << run.err;
  return run.out;
}

TEST(Hardening, OfTheProgram) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a build for tests";
#endif
  if (Program::run({"readelf", "--version"}).status != 0) GTEST_SKIP() << "there is no readelf";
  for (const std::string& file : {kProgram, kLibrary}) {
    SCOPED_TRACE(file);
    EXPECT_THAT(readelf({"-h"}, file), ContainsRegex("Type: +DYN"));
    const std::string segments = readelf({"-lW"}, file);
    EXPECT_THAT(segments, HasSubstr("GNU_RELRO"));
    EXPECT_THAT(segments, ContainsRegex("GNU_STACK .* RW "));
    EXPECT_THAT(segments, Not(HasSubstr("RWE")));
    const std::string dynamic = readelf({"-dW"}, file);
    EXPECT_THAT(dynamic, ContainsRegex("BIND_NOW|Flags:.* NOW"));
    EXPECT_THAT(dynamic, Not(HasSubstr("TEXTREL")));
    EXPECT_THAT(dynamic, ContainsRegex("RUNPATH.*\\[\\$ORIGIN"));
    EXPECT_THAT(dynamic, Not(ContainsRegex("RUNPATH.*(\\[:|::|:\\])"))) << "the working folder";
  }
  const std::string symbols = readelf({"-sW", "--dyn-syms"}, kLibrary);
  EXPECT_THAT(symbols, HasSubstr("__stack_chk_fail"));
  EXPECT_THAT(symbols, ContainsRegex("__(memcpy|snprintf|read|pread64|memmove|memset)_chk"));
}

// A stranger's folder may hold files with library names.
TEST(Hardening, LoadsNothingFromTheWorkingFolder) {
  if (Program::run({"readelf", "--version"}).status != 0) GTEST_SKIP() << "there is no readelf";
  const TempFolder folder;
  const std::string needed = readelf({"-dW"}, kProgram) + readelf({"-dW"}, kLibrary) +
                             readelf({"-dW"}, kBlas) + "(NEEDED) [libofsdp_openblas.so]\n";
  int names = 0;
  std::istringstream lines(needed);
  for (std::string line; std::getline(lines, line);) {
    const size_t open = line.find("[lib"), close = line.find(']');
    if (open == std::string::npos || line.find("(NEEDED)") == std::string::npos) continue;
    std::ofstream(folder.path() + "/" + line.substr(open + 1, close - open - 1)) << "no library";
    ++names;
  }
  EXPECT_GE(names, 10);
  const Finished run = Program::run({kProgram, "--version"}, {.folder = folder.path()});
  EXPECT_EQ(run.status, 0) << run.err;
  // OpenBLAS multiplies on such a processor, so it is loaded too.
  const Finished plan =
      Program::run({kProgram, "plan", OFSDP_SOURCE_DIR "/samples/mnist/mnist.onnx", "--loss",
                    "cross_entropy", "--explain"},
                   {.environment = kAvx2, .folder = folder.path()});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, ContainsRegex("Gemm.*: openblas"));
}

// Without OpenBLAS in the package, only the products that it would compute report it.
TEST(Hardening, WithoutOpenBlasOneDnnMultiplies) {
  if (!onednn::is_present()) GTEST_SKIP() << "this build has no oneDNN";
  const TempFolder folder;
  const std::filesystem::path own = folder.path();
  std::filesystem::copy_file(kProgram, own / "fsdp-run");
  std::filesystem::copy_file(kLibrary, own / "libonnx_fsdp.so.0");
  std::filesystem::create_symlink(OFSDP_LIBRARY_DIR "/onnx-fsdp", own / "onnx-fsdp");
  const Finished plan =
      Program::run({own / "fsdp-run", "plan", OFSDP_SOURCE_DIR "/samples/mnist/mnist.onnx",
                    "--loss", "cross_entropy", "--explain"},
                   {.environment = kAvx2});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, ContainsRegex("onednn .*not openblas: libofsdp_openblas.so is missing"));
}

// The library exports only the header's names, so it cannot clash with other libraries.
TEST(Hardening, TheLibraryHasTheNamesOfItsHeaderAlone) {
  if (Program::run({"nm", "--version"}).status != 0) GTEST_SKIP() << "there is no nm";
  const Finished run = Program::run({"nm", "-D", "--defined-only", kLibrary});
  ASSERT_EQ(run.status, 0) << run.err;
  std::istringstream lines(run.out);
  int names = 0;
  for (std::string line; std::getline(lines, line); ++names) {
    EXPECT_THAT(line, ContainsRegex(" T onnx_fsdp_[a-z_]+$"));
  }
  EXPECT_GE(names, 20);
}

}  // namespace hardening_test
}  // namespace ofsdp
