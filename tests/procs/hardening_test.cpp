// The program as it was linked ([Note: hardening] in cmake/targets.cmake), in the eyes of readelf.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace hardening_test {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string readelf(const Words& flags) {
  const Finished run = Program::run(Words{"readelf"} + flags + fsdp_run({}));
  EXPECT_EQ(run.status, 0) << run.err;
  return run.out;
}

TEST(Hardening, OfTheProgram) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a build for tests";
#endif
  if (Program::run({"readelf", "--version"}).status != 0) GTEST_SKIP() << "there is no readelf";
  EXPECT_THAT(readelf({"-h"}), ContainsRegex("Type: +DYN"));
  const std::string segments = readelf({"-lW"});
  EXPECT_THAT(segments, HasSubstr("GNU_RELRO"));
  EXPECT_THAT(segments, ContainsRegex("GNU_STACK .* RW "));
  EXPECT_THAT(segments, Not(HasSubstr("RWE")));
  const std::string dynamic = readelf({"-dW"});
  EXPECT_THAT(dynamic, ContainsRegex("BIND_NOW|Flags:.* NOW"));
  EXPECT_THAT(dynamic, Not(HasSubstr("TEXTREL")));
  EXPECT_THAT(dynamic, ContainsRegex("RUNPATH.*\\[\\$ORIGIN"));
  const std::string symbols = readelf({"-sW", "--dyn-syms"});
  EXPECT_THAT(symbols, HasSubstr("__stack_chk_fail"));
  EXPECT_THAT(symbols, ContainsRegex("__(memcpy|snprintf|read|pread64|memmove|memset)_chk"));
}

}  // namespace hardening_test
}  // namespace ofsdp
