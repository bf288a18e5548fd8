// Rows of samples that differ in length: graphs of nodes and edges. A file has the entries of all
// samples one after another along one axis. ColumnSpec::offsets names a .npy file of whole numbers:
// where each sample begins, and where the last one ends, as in PyTorch Geometric's `slices`.
//
// Row s has the entries from offset s to offset s + 1. If rows differ in length,
// ColumnSpec::padding must be set; it fills each up to the longest, or up to padding.to. Rows are
// made once per host, in memory that all of its ranks share.
#pragma once

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {

// `source` and `whole`: the opened file and its layout. Collective. Returns kInput if the offsets
// do not fit the file, with the offset.
Result<OpenedColumn> cut_rows(const ColumnSpec& spec, const ByteSource& source,
                              const ColumnLayout& whole, Communicator& communicator,
                              MemoryLedger& ledger);

}  // namespace ofsdp::runtime
