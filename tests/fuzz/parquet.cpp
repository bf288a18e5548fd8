// A fuzz target: a .parquet file. Every row in an accepted column can be read.
#include <vector>

#include "fsdp/comm/communicator.h"
#include "runtime/data/column_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ofsdp;
  // Columns in tests/fixtures/parquet/table.parquet.
  constexpr const char* kColumns[] = {"x", "count", "gap", "name", "category", "ragged", "deep"};
  if (size == 0) return 0;
  const uint8_t choice = data[size / 2];
  ColumnSpec spec;
  spec.path = fuzzing::file_with("x.parquet", fuzzing::text_of(data, size));
  spec.parts = {kColumns[choice % std::size(kColumns)]};
  if ((choice & 0x80) != 0) spec.missing = -1;
  if ((choice & 0x40) != 0) spec.padding.emplace();
  spec.classes = (choice & 0x20) != 0;
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  const auto file = ColumnFile::open(spec, *communicator, ledger);
  if (!file.ok()) {
    fuzzing::check_message(file.error().message());
    return 0;
  }
  std::vector<std::byte> row(file->layout().row_bytes());
  for (const int64_t i : {int64_t{0}, file->layout().count - 1}) {
    if (!file->read_row(i, row).ok()) std::abort();
  }
  return 0;
}
