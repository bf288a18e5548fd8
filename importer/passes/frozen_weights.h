// hold_frozen: frozen matrices stay in the type their file has, instead of becoming float32 when
// they are read: integers of 4 and 8 bits that are dequantized, and 16-bit floats.
//
//   x MatMul (Identity | Transpose)* FakeQuantize(w)     ofsdp.StoredMatMul(x, w, scale, zero)
//   Gemm, FusedMatMul                                    that, with a product and a sum after it
//   Gather(w) of 16-bit floats                           Gather, then a Cast of the rows it took
//
// Such a weight becomes a raw parameter (Parameter::raw), and so do its scales if nothing else
// reads them. A weight with another reader, and one whose bytes the file has in no place of their
// own, stays float32.
//
// `graph` is symbolic, its trained set chosen (trained_set.h). Pure. Threads: any. Errors: none.
#pragma once

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

Graph hold_frozen(const Graph& graph, const OnnxFile& file);

}  // namespace ofsdp::importer
