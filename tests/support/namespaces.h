// Tests look into every folder, so their namespace `ofsdp` sees all of them.
#pragma once

#include "kernels/base/namespaces.h"

// GoogleTest's names stay visible as testing::NAME inside of `ofsdp`, which has a `testing` too.
namespace testing {}
namespace ofsdp::testing {
using namespace ::testing;
}

namespace ofsdp {
using namespace kernels;
using namespace plugins;
using namespace importer;
using namespace fsdp;
using namespace runtime;
using namespace cli;
}  // namespace ofsdp
