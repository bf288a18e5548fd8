// Writes values of an initializer to their place in a model file, in the file's type.
//
// Elements of kStrided initializers are written with the tag before each, so ranges of elements
// written by different ranks make up the whole list. Threads: any, for different elements.
// Errors: kFault (disk).
#pragma once

#include <span>

#include "importer/file/initializer.h"
#include "kernels/base/posix_file.h"

namespace ofsdp::importer {

// `place` is not kList. Rounded to its dtype, nearest even.
Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src);

}  // namespace ofsdp::importer
