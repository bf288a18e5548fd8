// Names the rooms that the library sees without a qualifier, as kernels/base/namespaces.h does for
// the others.
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
