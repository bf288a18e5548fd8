#include "kernels/base/nearest_name.h"

#include <gtest/gtest.h>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace nearest_name_test {

const std::vector<std::string> kKnown = {"strategy", "shard-size", "batch-size", "lr",
                                         "epochs",   "eps",        "steps",      "step-size"};

TEST(NearestName, FindsAChangedLetter) { EXPECT_EQ(nearest_name("stratezy", kKnown), "strategy"); }

TEST(NearestName, FindsADroppedLetter) { EXPECT_EQ(nearest_name("stratgy", kKnown), "strategy"); }

TEST(NearestName, CountsASwapOnce) { EXPECT_EQ(nearest_name("rl", kKnown), "lr"); }

TEST(NearestName, IgnoresCaseAndUnderscores) {
  EXPECT_EQ(nearest_name("Batch_Size", kKnown), "batch-size");
}

TEST(NearestName, TakesTheNearest) {
  EXPECT_EQ(nearest_name("epoch", kKnown), "epochs");
  EXPECT_EQ(nearest_name("step", kKnown), "steps");
}

TEST(NearestName, ContinuesAShortName) {
  EXPECT_EQ(nearest_name("batch", kKnown), "batch-size");
  EXPECT_EQ(nearest_name("shard", kKnown), "shard-size");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("quantization", kKnown), "");
  EXPECT_EQ(nearest_name("x", kKnown), "");
  EXPECT_EQ(nearest_name("", kKnown), "");
  EXPECT_EQ(nearest_name("lr", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), kKnown), "");
}

TEST(NearestName, EndsAMessage) {
  EXPECT_EQ(did_you_mean("stratgy", kKnown), "; did you mean 'strategy'?");
  EXPECT_EQ(did_you_mean("quantization", kKnown), "");
}

}  // namespace nearest_name_test
}  // namespace ofsdp
