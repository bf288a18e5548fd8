// A hash of what a model computes, apart from its weights: nodes, names, shapes, opsets, constants
// that are no floats. The same for the input file and every trained copy of it.
//
// 64 bits of FNV-1a as 16 hexadecimal digits. It tells files apart by accident, not by malice.
// Threads: any.
#pragma once

#include <string>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

std::string graph_hash(const OnnxFile& file);

}  // namespace ofsdp::importer
