#include "fsdp/checkpoint/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/status.h"

namespace ofsdp::fsdp {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "onnx-fsdp checkpoint";

uint32_t text_checksum(const std::string& text) { return crc32c(std::as_bytes(std::span(text))); }

// Returns one text line. Replaces bytes that are not UTF-8.
std::string dump_line(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns a text for people, with a line for each key and each file.
std::string dump_lines(const Json& j) {
  std::string text;
  for (const auto& [key, value] : j.items()) {
    text += format_text("{}\n \"{}\": ", text.empty() ? "{" : ",", key);
    if (key != "files" || value.empty()) {
      text += dump_line(value);
      continue;
    }
    const char* before = "[\n  ";
    for (const Json& file : value) text += std::exchange(before, ",\n  ") + dump_line(file);
    text += "\n ]";
  }
  return text + "\n}\n";
}

// ---- Members: one list for each struct serves writing and reading ----
//
// Reading throws; parse_manifest and parse_files catch the exceptions, ours and nlohmann's.

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;
template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <bool kWrites>
class Members {
 public:
  using Value = std::conditional_t<kWrites, Json, const Json>;
  explicit Members(Value& json) : json_(json) {}

  // An object's members: name, value, name, value, ...
  void named(const char* name, auto& value, auto&&... more) {
    if constexpr (kWrites) {
      write(json_[name], value);
    } else {
      read(json_.at(name), value);
    }
    if constexpr (sizeof...(more) > 0) named(more...);
  }
  // All members in an object, with any names.
  void all(auto& values) {
    if constexpr (kWrites) {
      json_ = Json::object();
      for (const auto& [name, value] : values) write(json_[name], value);
    } else {
      for (const auto& [name, item] : json_.template get_ref<const Json::object_t&>()) {
        read(item, values[name]);
      }
    }
  }
  // A text or a list that is left out if it is empty, and that older manifests do not have.
  void optional(const char* name, auto& value) {
    if constexpr (kWrites) {
      if (!value.empty()) write(json_[name], value);
    } else {
      if (json_.contains(name)) read(json_.at(name), value);
    }
  }
  // An array's elements.
  void in_order(auto&... values) {
    [[maybe_unused]] size_t next = 0;
    if constexpr (kWrites) {
      (write(json_.emplace_back(nullptr), values), ...);
    } else {
      (read(json_.at(next++), values), ...);
    }
  }

 private:
  template <typename T>
  static void write(Json& json, const T& value) {
    if constexpr (kIsList<T>) {
      json = Json::array();
      for (const auto& item : value) write(json.emplace_back(nullptr), item);
    } else if constexpr (kIsOptional<T>) {
      if (value) write(json, *value);
    } else if constexpr (requires(Members m) { list_members(m, value); }) {
      Members members(json);
      list_members(members, value);
    } else {
      json = value;
    }
  }

  template <typename T>
  static void read(const Json& json, T& value) {
    if constexpr (kIsList<T>) {
      for (const Json& item : json.get_ref<const Json::array_t&>()) {
        read(item, value.emplace_back());
      }
    } else if constexpr (kIsOptional<T>) {
      if (!json.is_null()) read(json, value.emplace());
    } else if constexpr (requires(Members m) { list_members(m, value); }) {
      Members members(json);
      list_members(members, value);
    } else {
      // The library would convert fractions and 1e300 to whole numbers; a manifest has none.
      const bool whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
      if (whole && !json.is_number_integer()) {
        throw std::runtime_error("expected a whole number, found " + dump_line(json).substr(0, 40));
      }
      value = json.get<T>();
    }
  }

  Value& json_;
};

// A struct to write from or to read into.
template <bool kWrites, typename T>
using Listed = std::conditional_t<kWrites, const T, T>&;

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, Slice> s) {
  m.in_order(s.kind, s.name, s.first, s.count, s.offset, s.checksums);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, CheckpointFile> f) {
  m.named("name", f.name, "rank", f.rank, "bytes", f.bytes, "header_crc32c", f.header, "slices",
          f.slices);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, NamedTensor> t) {
  std::vector<int64_t> axes = t.shape.axes();
  m.named("name", t.name, "shape", axes);
  if constexpr (!kWrites) t.shape = Shape(std::move(axes));
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, StateTensor> t) {
  std::vector<int64_t> axes = t.shape.axes();
  m.in_order(t.kind, t.name, axes);
  if constexpr (!kWrites) t.shape = Shape(std::move(axes));
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, UnitLayout::Part> p) {
  m.in_order(p.name, p.offset, p.numel);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, UnitLayout> unit) {
  m.named("padded_numel", unit.padded_numel, "params", unit.params);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, SamplerPosition> s) {
  m.named("epoch", s.epoch, "sample", s.sample, "samples", s.samples);
  m.named("global_batch", s.global_batch, "seed", s.seed);
  m.named("shuffle", s.shuffle, "drop_last", s.drop_last);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, SavedLossScale> s) {
  m.named("scale", s.scale, "good_updates", s.good_updates, "skipped_updates", s.skipped_updates);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, SavedEvaluation> e) {
  m.all(e.numbers);
}

template <bool kWrites>
void list_members(Members<kWrites>& m, Listed<kWrites, Manifest> all) {
  m.named("type", all.type, "save", all.save, "sequence", all.sequence);
  m.named("model", all.model, "graph_hash", all.graph);
  m.optional("edits", all.edits);
  m.optional("teacher", all.teacher);
  m.optional("classes", all.classes);
  m.named("world", all.world, "strategy", all.strategy, "wrap", all.wrap);
  m.named("step", all.step, "sampler", all.sampler, "schedule", all.schedule, "lr", all.lr);
  m.named("optimizer", all.optimizer, "states", all.states);
  m.named("loss_scale", all.loss_scale, "evaluation", all.evaluation);
  m.named("trained", all.trained, "statistics", all.statistics);
  m.optional("state_tensors", all.state_tensors);
  m.optional("early_stop", all.early_stop);
  m.named("units", all.units, "files", all.files);
}

// Checks format, version and checksum.
Status check_envelope(const Json& j) {
  OFSDP_REJECT_IF(!j.is_object() || j.value("format", Json()) != kFormat,
                  "expected \"format\": \"{}\", found another file", kFormat);
  const Json version = j.value("version", Json());
  OFSDP_REJECT_IF(version != kCheckpointVersion, "expected version {}, found {}",
                  kCheckpointVersion, version.dump());
  const Json said = j.value("crc32c", Json());
  Json rest = j;
  rest.erase("crc32c");
  const uint32_t found = text_checksum(dump_line(rest));
  if (said == found) return ok_status();
  return input_error("its own checksum is {}, but its content gives {}: it was changed",
                     said.dump(), found);
}

// ---- parse_manifest's checks ----

constexpr int64_t kMaxNumel = int64_t{1}
                              << 60;  // so that neither a two-term sum nor bytes overflow

class ManifestCheck {
 public:
  explicit ManifestCheck(const Manifest& manifest) : m_(manifest) {}

  Status check() {
    if (m_.world < 1) return input_error("expected a world of at least 1, found {}", m_.world);
    OFSDP_REJECT_IF(m_.step < 0 || m_.sampler.epoch < 0 || m_.sampler.sample < 0,
                    "expected a step, epoch and sample of at least 0, found {}, {} and {}", m_.step,
                    m_.sampler.epoch, m_.sampler.sample);
    OFSDP_REJECT_IF(m_.type != "sharded" && m_.type != "full" && m_.type != "local",
                    "expected type sharded, full or local, found '{}'", m_.type);
    OFSDP_RETURN_IF_ERROR(add_tensors(m_.trained, trained_));
    OFSDP_RETURN_IF_ERROR(add_tensors(m_.statistics, statistics_));
    OFSDP_RETURN_IF_ERROR(add_states());
    OFSDP_RETURN_IF_ERROR(check_units());
    std::set<std::string> names;
    for (const CheckpointFile& file : m_.files) {
      OFSDP_REJECT_IF(!names.insert(file.name).second, "file {} stands here twice", file.name);
      OFSDP_RETURN_IF_ERROR(check_file(file).with_prefix(file.name));
    }
    return ok_status();
  }

 private:
  static Status add_tensors(const std::vector<NamedTensor>& list,
                            std::map<std::string, int64_t>& numels) {
    for (const NamedTensor& tensor : list) {
      const Result<int64_t> numel = checked_numel(tensor.shape.axes());
      OFSDP_REJECT_IF(!numel.ok() || *numel > kMaxNumel, "'{}': no shape {}", tensor.name,
                      tensor.shape.text());
      OFSDP_REJECT_IF(!numels.emplace(tensor.name, *numel).second, "'{}' stands here twice",
                      tensor.name);
    }
    return ok_status();
  }

  Status add_states() {
    for (const StateTensor& t : m_.state_tensors) {
      const Result<int64_t> numel = checked_numel(t.shape.axes());
      const bool known = std::ranges::count(m_.states, t.kind) > 0 && trained_.contains(t.name);
      OFSDP_REJECT_IF(!known, "state {} of '{}': there is no such state or tensor", t.kind, t.name);
      OFSDP_REJECT_IF(!numel.ok() || *numel > kMaxNumel, "{} of '{}': no shape {}", t.kind, t.name,
                      t.shape.text());
      OFSDP_REJECT_IF(!states_.emplace(std::pair(t.kind, t.name), *numel).second,
                      "{} of '{}' stands here twice", t.kind, t.name);
    }
    return ok_status();
  }

  Status check_units() const {
    for (size_t u = 0; u < m_.units.size(); ++u) {
      const UnitLayout& unit = m_.units[u];
      OFSDP_REJECT_IF(unit.padded_numel < 0 || unit.padded_numel > kMaxNumel, "unit {}: no size {}",
                      u, unit.padded_numel);
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
    OFSDP_REJECT_IF(file.rank < 0 || file.rank >= m_.world, "expected a rank of {}, found rank {}",
                    m_.world, file.rank);
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
    const std::optional<int64_t> numel = find_numel(s);
    if (!numel) return input_error("there is no such tensor");
    OFSDP_REJECT_IF(s.first < 0 || s.count < 0 || s.first > *numel || s.count > *numel - s.first,
                    "elements {} + {} of {}", s.first, s.count, *numel);
    OFSDP_REJECT_IF(s.offset < 0 || s.offset > file.bytes || s.bytes() > file.bytes - s.offset,
                    "expected {} bytes at byte {}, the file has {}", s.bytes(), s.offset,
                    file.bytes);
    if (s.blocks() == static_cast<int64_t>(s.checksums.size())) return ok_status();
    return input_error("expected {} checksums, found {}", s.blocks(), s.checksums.size());
  }

  std::optional<int64_t> find_numel(const Slice& s) const {
    const bool statistic = s.kind == kStatisticKind;
    if (!states_.empty() && std::ranges::count(m_.states, s.kind) > 0) {
      const auto found = states_.find({s.kind, s.name});
      return found == states_.end() ? std::nullopt : std::optional(found->second);
    }
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
  std::map<std::pair<std::string, std::string>, int64_t> states_;  // from state_tensors
};

}  // namespace

std::vector<StateTensor> saved_states(const Manifest& manifest) {
  std::vector<StateTensor> tensors = manifest.state_tensors;
  if (!tensors.empty()) return tensors;
  for (const NamedTensor& tensor : manifest.trained) {
    for (const std::string& kind : manifest.states) {
      tensors.push_back({kind, tensor.name, tensor.shape});
    }
  }
  return tensors;
}

std::string to_text(const Manifest& manifest) {
  Json j = {{"format", kFormat}, {"version", kCheckpointVersion}};
  Members<true> members(j);
  list_members(members, manifest);
  j["crc32c"] = text_checksum(dump_line(j));
  return dump_lines(j);
}

Result<Manifest> parse_manifest(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    OFSDP_RETURN_IF_ERROR(check_envelope(j));
    Manifest manifest;
    Members<false> members(j);
    list_members(members, manifest);
    OFSDP_RETURN_IF_ERROR(ManifestCheck(manifest).check());
    return manifest;
  } catch (const std::exception& error) {
    return input_error("expected a manifest as JSON, found: {}", error.what());
  }
}

Result<Manifest> read_manifest(const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  OFSDP_REJECT_IF(is_absent(path), "{}: expected a checkpoint, found no {} in it", folder,
                  kManifestName);
  OFSDP_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxManifest));
  return prefixed(path, parse_manifest(text));
}

std::string to_text(const std::vector<CheckpointFile>& files) {
  Json list = Json::array();
  for (const CheckpointFile& file : files) {
    Members<true> members(list.emplace_back(nullptr));
    list_members(members, file);
  }
  return dump_line(list);
}

Result<std::vector<CheckpointFile>> parse_files(const std::string& text) {
  try {
    std::vector<CheckpointFile> files;
    const Json list = Json::parse(text);
    for (const Json& item : list.get_ref<const Json::array_t&>()) {
      Members<false> members(item);
      list_members(members, files.emplace_back());
    }
    return files;
  } catch (const std::exception& error) {
    return input_error("expected a list of files as JSON, found: {}", error.what());
  }
}

}  // namespace ofsdp::fsdp
