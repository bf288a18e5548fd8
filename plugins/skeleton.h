// Writes the start of a plug-in for operators that a model needs and nobody supplies: a folder with
// one C++ file, a CMakeLists.txt and a sample case. It builds at once; forward and backward are to
// be written, and say so until then.
//
// An input error if the folder exists and is not empty, a fault if it cannot be written.
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
