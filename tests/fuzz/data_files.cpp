// A fuzz target: the first byte chooses a data format, the rest is the file. Every row of an
// accepted file can be read. Corpus: files that tests/fuzz/run.sh puts a byte in front of.
#include <vector>

#include "fsdp/comm/communicator.h"
#include "runtime/data/column_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ofsdp;
  constexpr const char* kNames[] = {"x.npy",    "x.npy.gz", "x-ubyte", "x-ubyte.gz", "x.bin",
                                    "x.bin.gz", "x.csv",    "x.tsv",   "x.jsonl"};
  if (size == 0) return 0;
  ColumnSpec spec;
  spec.path =
      fuzzing::file_with(kNames[data[0] % std::size(kNames)], fuzzing::text_of(data + 1, size - 1));
  if (spec.path.find(".bin") != std::string::npos) spec.sequence_length = 4;
  spec.parts = {"x"};  // of text; higher bits of the first byte choose the keys
  if ((data[0] & 0x80) != 0) spec.parts.emplace_back("y");
  if ((data[0] & 0x40) != 0) spec.missing = -1;
  if ((data[0] & 0x20) != 0) spec.padding.emplace();
  spec.classes = (data[0] & 0x10) != 0;
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  const auto file = ColumnFile::open(spec, *communicator, ledger);
  if (!file.ok()) {
    fuzzing::check_message(file.error().message());
    return 0;
  }
  const ColumnLayout& layout = file->layout();
  std::vector<std::byte> row(layout.row_bytes());
  for (const int64_t i : {int64_t{0}, layout.count - 1}) {
    const uint64_t offset = layout.first_byte + static_cast<uint64_t>(i) * layout.row_stride;
    if (!file->read(offset, row).ok()) std::abort();
  }
  return 0;
}
