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

// `place` is not kList. Rounded to its dtype, nearest even; values of a quantized weight become
// integers.
Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src);
Status write_integers(const OpenFile& file, const Initializer& place, int64_t first,
                      std::span<const int64_t> integers);

}  // namespace ofsdp::importer
