// What parse_manifest promises of every manifest that it gives out.
#include <map>
#include <set>

#include "fsdp/checkpoint/manifest.h"

namespace ofsdp::fsdp {
namespace {

constexpr int64_t kMostNumel = int64_t{1} << 60;  // so that no sum of two, nor bytes, overflow

class ManifestCheck {
 public:
  explicit ManifestCheck(const Manifest& manifest) : m_(manifest) {}

  Status check() {
    if (m_.world < 1) return input_error("expected a world of at least 1, found {}", m_.world);
    if (m_.step < 0 || m_.sampler.epoch < 0 || m_.sampler.sample < 0) {
      return input_error("expected a step, epoch and sample of at least 0, found {}, {} and {}",
                         m_.step, m_.sampler.epoch, m_.sampler.sample);
    }
    if (m_.type != "sharded" && m_.type != "full" && m_.type != "local") {
      return input_error("expected type sharded, full or local, found '{}'", m_.type);
    }
    OFSDP_RETURN_IF_ERROR(add_tensors(m_.trained, trained_));
    OFSDP_RETURN_IF_ERROR(add_tensors(m_.statistics, statistics_));
    OFSDP_RETURN_IF_ERROR(check_units());
    std::set<std::string> names;
    for (const CheckpointFile& file : m_.files) {
      if (!names.insert(file.name).second)
        return input_error("file {} stands here twice", file.name);
      OFSDP_RETURN_IF_ERROR(check_file(file).with_prefix(file.name));
    }
    return ok_status();
  }

 private:
  static Status add_tensors(const std::vector<NamedTensor>& list,
                            std::map<std::string, int64_t>& numels) {
    for (const NamedTensor& tensor : list) {
      const Result<int64_t> numel = checked_numel(tensor.shape.axes());
      if (!numel.ok() || *numel > kMostNumel) {
        return input_error("'{}': no shape {}", tensor.name, tensor.shape.text());
      }
      if (!numels.emplace(tensor.name, *numel).second) {
        return input_error("'{}' stands here twice", tensor.name);
      }
    }
    return ok_status();
  }

  Status check_units() const {
    for (size_t u = 0; u < m_.units.size(); ++u) {
      const UnitLayout& unit = m_.units[u];
      if (unit.padded_numel < 0 || unit.padded_numel > kMostNumel) {
        return input_error("unit {}: no size {}", u, unit.padded_numel);
      }
      for (const UnitLayout::Part& part : unit.params) {
        const auto found = trained_.find(part.name);
        const bool fits = part.offset >= 0 && part.offset <= unit.padded_numel &&
                          found != trained_.end() && found->second == part.numel &&
                          part.numel <= unit.padded_numel - part.offset;
        if (fits) continue;
        return input_error("unit {} of {} elements: '{}' ({} elements at {}) does not lie in it", u,
                           unit.padded_numel, part.name, part.numel, part.offset);
      }
    }
    return ok_status();
  }

  Status check_file(const CheckpointFile& file) const {
    const bool plain = !file.name.empty() && file.name.find('/') == std::string::npos &&
                       file.name.find('\0') == std::string::npos && file.name[0] != '.';
    if (!plain) return input_error("expected the plain name of a file");
    if (file.rank < 0 || file.rank >= m_.world) {
      return input_error("expected a rank of {}, found rank {}", m_.world, file.rank);
    }
    if (file.bytes < 0) return input_error("expected a size, found {}", file.bytes);
    int64_t end = 0;
    for (const Slice& slice : file.slices) {
      OFSDP_RETURN_IF_ERROR(
          check_slice(slice, file)
              .with_prefix(format_text("slice of {} '{}'", slice.kind, slice.name)));
      if (slice.offset < end && file.header) return input_error("slices overlap at byte {}", end);
      end = slice.offset + slice.bytes();
    }
    return ok_status();
  }

  Status check_slice(const Slice& s, const CheckpointFile& file) const {
    const std::optional<int64_t> numel = numel_of(s);
    if (!numel) return input_error("there is no such tensor");
    if (s.first < 0 || s.count < 0 || s.first > *numel || s.count > *numel - s.first) {
      return input_error("elements {} + {} of {}", s.first, s.count, *numel);
    }
    if (s.offset < 0 || s.offset > file.bytes || s.bytes() > file.bytes - s.offset) {
      return input_error("expected {} bytes at byte {}, the file has {}", s.bytes(), s.offset,
                         file.bytes);
    }
    if (s.blocks() == static_cast<int64_t>(s.checksums.size())) return ok_status();
    return input_error("expected {} checksums, found {}", s.blocks(), s.checksums.size());
  }

  std::optional<int64_t> numel_of(const Slice& s) const {
    const bool statistic = s.kind == kStatisticKind;
    if (m_.type == "local" && !statistic) {
      size_t unit = 0;
      for (const char c : s.name) {
        if (c < '0' || c > '9' || unit > m_.units.size()) return std::nullopt;
        unit = unit * 10 + static_cast<size_t>(c - '0');
      }
      if (s.name.empty() || unit >= m_.units.size()) return std::nullopt;
      return m_.units[unit].padded_numel;
    }
    const auto& tensors = statistic ? statistics_ : trained_;
    const auto found = tensors.find(s.name);
    return found == tensors.end() ? std::nullopt : std::optional(found->second);
  }

  const Manifest& m_;
  std::map<std::string, int64_t> trained_, statistics_;
};

}  // namespace

Status check_manifest(const Manifest& manifest) { return ManifestCheck(manifest).check(); }

}  // namespace ofsdp::fsdp
