// Fifty runs in which a random rank is killed, stopped or cut off at a random moment
// (failing_runs.h).
//
// OFSDP_FAILURES is the number of runs; OFSDP_FAILURE_SEED chooses the moments.
#include "tests/support/failing_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

TEST(FailuresTest, AllEndInTimeAndGoOnWithTheSameBits) {
  fail_at_random(setting("OFSDP_FAILURES", 50),
                 static_cast<unsigned>(setting("OFSDP_FAILURE_SEED", 1)));
}

}  // namespace
}  // namespace ofsdp
