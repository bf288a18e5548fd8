// OFSDP_MAX_CPU_ISA=AVX2 takes AVX-512 from every function that the compiler's resolvers choose;
// see [Note: OFSDP_MAX_CPU_ISA]. Sanitizer builds have no clones, so there it skips.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace cpu_isa_test {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// OFSDP_MULTIARCH has the same resolver.
__attribute__((target("default"))) int level() { return 1; }
__attribute__((target("arch=x86-64-v3"))) int level() { return 3; }
__attribute__((target("arch=x86-64-v4"))) int level() { return 4; }

// The level that this program prints when started with the variable; 0 without a level.
int level_with(const std::string& variable) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 0;
  const std::string command = "env -u OFSDP_MAX_CPU_ISA " + variable + " PRINT_LEVEL=1 '" + self +
                              "' --gtest_filter=CpuIsa.AVariableTakesAvx512Away 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  int found = 0;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) std::sscanf(line, "level %d", &found);
  pclose(pipe);
  return found;
}

TEST(CpuIsa, AVariableTakesAvx512Away) {
  if (std::getenv("PRINT_LEVEL") != nullptr) {
    std::printf("level %d\n", level());
    return;
  }
  const int whole = level_with("OFSDP_MAX_CPU_ISA=");
  EXPECT_GE(whole, 1);
  EXPECT_EQ(level_with("OFSDP_MAX_CPU_ISA=AVX2"), std::min(whole, 3));
  EXPECT_EQ(level_with("OFSDP_MAX_CPU_ISA=AVX2X"), whole) << "another value limits nothing";
  EXPECT_EQ(level_with("NOT_OFSDP_MAX_CPU_ISA=AVX2"), whole) << "another variable limits nothing";
}

#else

TEST(CpuIsa, AVariableTakesAvx512Away) { GTEST_SKIP() << "a sanitizer build has no clones"; }

#endif

}  // namespace cpu_isa_test
}  // namespace ofsdp
