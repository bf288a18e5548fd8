// What the library sees of the other rooms without a qualifier, as kernels/base/namespaces.h says
// for them.
#pragma once

#include "kernels/base/namespaces.h"

namespace ofsdp::library {
using namespace kernels;
using namespace plugins;
using namespace importer;
using namespace fsdp;
using namespace runtime;
using namespace cli;
}  // namespace ofsdp::library
