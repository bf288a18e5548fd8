// Each top folder has a namespace, which sees exactly the folders it may include without a
// qualifier (tests/layering.py). A folder's own name hides the same name in a folder below.
#pragma once

namespace ofsdp {

namespace base {}
using namespace base;

namespace kernels {}

namespace plugins {
using namespace kernels;
}

namespace importer {
using namespace kernels;
}

namespace fsdp {
using namespace kernels;
using namespace importer;
}  // namespace fsdp

namespace runtime {
using namespace kernels;
using namespace plugins;
using namespace importer;
using namespace fsdp;
}  // namespace runtime

namespace cli {
using namespace kernels;
using namespace plugins;
using namespace importer;
using namespace fsdp;
using namespace runtime;
}  // namespace cli

}  // namespace ofsdp
