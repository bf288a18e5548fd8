#include "runtime/commands/rows_writer.h"

#include <zlib.h>

#include <algorithm>

#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

// Adds integers in little-endian order, as zip files have them.
class ByteRecord {
 public:
  ByteRecord& u16(uint64_t v) { return add(v, 2); }
  ByteRecord& u32(uint64_t v) { return add(v, 4); }
  ByteRecord& u64(uint64_t v) { return add(v, 8); }
  ByteRecord& text(const std::string& t) {
    bytes_ += t;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  ByteRecord& add(uint64_t v, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(v >> (8 * i) & 0xff);
    return *this;
  }

  std::string bytes_;
};

// One .npy file, or an .npz file: a zip file of stored .npy members, with 64-bit sizes (PKWARE's
// APPNOTE.TXT, 4.3 and 4.5.3).
class ArrayWriter final : public RowsWriter {
 public:
  explicit ArrayWriter(bool zip) : zip_(zip) {}

  Status begin(const std::string& path, const std::vector<Prediction>& outputs,
               int64_t rows) override {
    OFSDP_ASSIGN_OR_RETURN(file_, open_for_writing(path));
    for (const Prediction& output : outputs) {
      std::vector<int64_t> dims{rows};
      dims.insert(dims.end(), output.row.axes().begin(), output.row.axes().end());
      Member member{.name = output.name + ".npy", .row_bytes = output.row_bytes()};
      const std::string header = npy_header(output.dtype, dims);
      member.size = header.size() + static_cast<uint64_t>(rows) * output.row_bytes();
      member.begin = end_;
      end_ += zip_ ? local_header(member).size() : 0;
      member.next = end_;
      end_ += member.size;
      members_.push_back(member);
      OFSDP_RETURN_IF_ERROR(append(members_.back(), std::as_bytes(std::span(header))));
    }
    return {};
  }

  Status add(const std::vector<std::vector<std::byte>>& rows, int64_t count) override {
    for (size_t i = 0; i < members_.size(); ++i) {
      const size_t bytes = static_cast<size_t>(count) * members_[i].row_bytes;
      OFSDP_RETURN_IF_ERROR(append(members_[i], std::span(rows[i]).first(bytes)));
    }
    return {};
  }

  Status finish() override {
    if (!zip_) return {};
    for (const Member& m : members_) OFSDP_RETURN_IF_ERROR(put(m.begin, local_header(m)));
    return put(end_, directory());
  }

 private:
  struct Member {
    std::string name;
    size_t row_bytes = 0;
    uint64_t size = 0, begin = 0;  // of the data; the offset of the member
    uint64_t next = 0;             // the offset at which the next bytes go
    uint32_t crc = 0;
  };
  static constexpr uint64_t kInExtra = 0xffffffff;  // the 64-bit field has the number
  static constexpr uint64_t kVersion = 45, kFirstOf1980 = 0x21;

  Status put(uint64_t at, const std::string& bytes) const {
    return write_exactly(file_, static_cast<int64_t>(at), std::as_bytes(std::span(bytes)));
  }

  Status append(Member& member, std::span<const std::byte> bytes) const {
    if (bytes.empty()) return {};  // zlib takes a null pointer for a new checksum
    OFSDP_RETURN_IF_ERROR(write_exactly(file_, static_cast<int64_t>(member.next), bytes));
    member.next += bytes.size();
    member.crc = static_cast<uint32_t>(
        crc32_z(member.crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    return {};
  }

  static std::string local_header(const Member& m) {
    ByteRecord r;
    r.u32(0x04034b50).u16(kVersion).u16(0).u16(0).u16(0).u16(kFirstOf1980).u32(m.crc);
    r.u32(kInExtra).u32(kInExtra).u16(m.name.size()).u16(20).text(m.name);
    return r.u16(1).u16(16).u64(m.size).u64(m.size).bytes();
  }

  std::string directory() const {
    ByteRecord r;
    for (const Member& m : members_) {
      r.u32(0x02014b50).u16(kVersion).u16(kVersion).u16(0).u16(0).u16(0).u16(kFirstOf1980);
      r.u32(m.crc).u32(kInExtra).u32(kInExtra).u16(m.name.size()).u16(28).u16(0).u16(0).u16(0);
      r.u32(0).u32(kInExtra).text(m.name);
      r.u16(1).u16(24).u64(m.size).u64(m.size).u64(m.begin);
    }
    const uint64_t size = r.bytes().size(), count = members_.size();
    r.u32(0x06064b50).u64(44).u16(kVersion).u16(kVersion).u32(0).u32(0);
    r.u64(count).u64(count).u64(size).u64(end_);
    r.u32(0x07064b50).u32(0).u64(end_ + size).u32(1);
    return r.u32(0x06054b50)
        .u16(0)
        .u16(0)
        .u16(0xffff)
        .u16(0xffff)
        .u32(kInExtra)
        .u32(kInExtra)
        .u16(0)
        .bytes();
  }

  const bool zip_;
  OpenFile file_;
  std::vector<Member> members_;
  uint64_t end_ = 0;
};

// A header and a line for each sample. An output with one axis besides the samples has a column for
// each index. `classes`: the only output gets a column with the name of its largest number.
class CsvWriter final : public RowsWriter {
 public:
  explicit CsvWriter(std::vector<std::string> classes) : classes_(std::move(classes)) {}

  Status begin(const std::string& path, const std::vector<Prediction>& outputs, int64_t) override {
    OFSDP_ASSIGN_OR_RETURN(file_, open_for_writing(path));
    outputs_ = outputs;
    std::vector<std::string> names;
    for (const Prediction& output : outputs) {
      OFSDP_REJECT_IF(output.row.rank() > 1,
                      "-o FILE.csv: output '{}': expected at most one axis besides the samples, "
                      "found {}; .npy and .npz take it",
                      escaped(output.name), output.row.text());
      for (int64_t i = 0; i < output.row.numel(); ++i) {
        names.push_back(
            csv_cell(output.row.rank() == 0 ? output.name : format_text("{}_{}", output.name, i)));
      }
    }
    if (!classes_.empty()) names.emplace_back("class");
    return append(joined(names, ",") + "\n");
  }

  Status add(const std::vector<std::vector<std::byte>>& rows, int64_t count) override {
    std::string lines;
    for (int64_t row = 0; row < count; ++row) {
      std::string line;
      for (size_t i = 0; i < outputs_.size(); ++i) add_numbers(i, rows[i], row, line);
      lines += line + "\n";
    }
    return append(lines);
  }

  Status finish() override { return {}; }

 private:
  Status append(const std::string& text) {
    const int64_t at = end_;
    end_ += std::ssize(text);
    return write_exactly(file_, at, std::as_bytes(std::span(text)));
  }

  void add_numbers(size_t output, const std::vector<std::byte>& rows, int64_t row,
                   std::string& line) const {
    const Prediction& p = outputs_[output];
    const std::byte* const begin = rows.data() + static_cast<size_t>(row) * p.row_bytes();
    const std::vector<double> numbers = to_doubles({p.dtype, p.row}, begin);
    for (const double number : numbers) {
      if (!line.empty()) line += ',';
      line += p.dtype == DType::kFloat32 ? format_text("{}", static_cast<float>(number))
                                         : format_text("{}", number);
    }
    if (classes_.empty()) return;
    const auto best = std::ranges::max_element(numbers) - numbers.begin();
    line += "," + csv_cell(classes_[static_cast<size_t>(best)]);
  }

  const std::vector<std::string> classes_;
  std::vector<Prediction> outputs_;
  OpenFile file_;
  int64_t end_ = 0;
};

}  // namespace

std::unique_ptr<RowsWriter> make_rows_writer(const std::string& extension,
                                             std::vector<std::string> classes) {
  if (extension == ".csv") return std::make_unique<CsvWriter>(std::move(classes));
  return std::make_unique<ArrayWriter>(extension == ".npz");
}

}  // namespace ofsdp::runtime
