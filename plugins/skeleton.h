// The beginning of a plug-in: a folder with one C++ file, a CMakeLists.txt and a sample case, for
// operators that a model has and nobody supplies. It builds as it is; forward and backward are to
// be written, and say so until then.
//
// Ownership: values. Threads: one. Errors: kInput when the folder exists and is not empty, kFault
// when it cannot be written.
#pragma once

#include "kernels/core/attributes.h"

namespace ofsdp::plugins {

struct SkeletonOperator {
  std::string domain;
  std::string name;
  size_t inputs = 0;
  size_t outputs = 0;
  Attributes attributes;
};

Status write_skeleton(const std::string& folder, const std::vector<SkeletonOperator>& operators);

}  // namespace ofsdp::plugins
