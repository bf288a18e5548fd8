#include "fsdp/checkpoint/manifest.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "fsdp/checkpoint/crc32c.h"

namespace ofsdp::fsdp {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "onnx-fsdp checkpoint";

uint32_t checksum_of(const std::string& text) { return crc32c(std::as_bytes(std::span(text))); }

// On one line; bytes of a name that are no UTF-8 do not end the run.
std::string line_of(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A key a line, a file a line: for people.
std::string lines_of(const Json& j) {
  std::string text;
  for (const auto& [key, value] : j.items()) {
    text += format_text("{}\n \"{}\": ", text.empty() ? "{" : ",", key);
    if (key != "files" || value.empty()) {
      text += line_of(value);
      continue;
    }
    const char* before = "[\n  ";
    for (const Json& file : value) text += std::exchange(before, ",\n  ") + line_of(file);
    text += "\n ]";
  }
  return text + "\n}\n";
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const Slice& s) {
  return Json::array({s.kind, s.name, s.first, s.count, s.offset, s.checksums});
}

Json json_of(const CheckpointFile& f) {
  Json slices = Json::array();
  for (const Slice& s : f.slices) slices.push_back(json_of(s));
  return {{"name", f.name},
          {"rank", f.rank},
          {"bytes", f.bytes},
          {"header_crc32c", or_null(f.header)},
          {"slices", std::move(slices)}};
}

Json json_of(const NamedTensor& t) { return {{"name", t.name}, {"shape", t.shape.axes()}}; }

Json json_of(const UnitLayout& unit) {
  Json params = Json::array();
  for (const auto& p : unit.params) params.push_back(Json::array({p.name, p.offset, p.numel}));
  return {{"padded_numel", unit.padded_numel}, {"params", std::move(params)}};
}

Json json_of(const SamplerPosition& s) {
  return {{"epoch", s.epoch},        {"sample", s.sample},
          {"samples", s.samples},    {"global_batch", s.global_batch},
          {"seed", s.seed},          {"shuffle", s.shuffle},
          {"drop_last", s.drop_last}};
}

template <typename T>
Json list_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(json_of(value));
  return list;
}

// ---- Reading: nlohmann's exceptions end in parse_manifest and parse_files. ----

// The library makes whole numbers of fractions and of 1e300; a manifest has none.
template <typename T>
T whole(const Json& j) {
  if (j.is_number_integer()) return j.get<T>();
  throw std::runtime_error("expected a whole number, found " + line_of(j).substr(0, 40));
}

template <typename T, typename F>
std::vector<T> read_list(const Json& list, F read) {
  std::vector<T> values;
  for (const Json& item : list.get_ref<const Json::array_t&>()) values.push_back(read(item));
  return values;
}

template <typename T>
std::optional<T> optional_of(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

Slice read_slice(const Json& j) {
  return {j.at(0).get<std::string>(),
          j.at(1).get<std::string>(),
          whole<int64_t>(j.at(2)),
          whole<int64_t>(j.at(3)),
          whole<int64_t>(j.at(4)),
          read_list<uint32_t>(j.at(5), [](const Json& x) { return whole<uint32_t>(x); })};
}

CheckpointFile read_file(const Json& j) {
  return {j.at("name").get<std::string>(), whole<int>(j.at("rank")), whole<int64_t>(j.at("bytes")),
          j.at("header_crc32c").is_null() ? std::nullopt
                                          : std::optional(whole<uint32_t>(j.at("header_crc32c"))),
          read_list<Slice>(j.at("slices"), read_slice)};
}

NamedTensor read_tensor(const Json& j) {
  return {
      j.at("name").get<std::string>(),
      Shape(read_list<int64_t>(j.at("shape"), [](const Json& x) { return whole<int64_t>(x); }))};
}

UnitLayout read_unit(const Json& j) {
  return {whole<int64_t>(j.at("padded_numel")),
          read_list<UnitLayout::Part>(j.at("params"), [](const Json& p) {
            return UnitLayout::Part{p.at(0).get<std::string>(), whole<int64_t>(p.at(1)),
                                    whole<int64_t>(p.at(2))};
          })};
}

SamplerPosition read_sampler(const Json& j) {
  return {whole<int64_t>(j.at("epoch")),   whole<int64_t>(j.at("sample")),
          whole<int64_t>(j.at("samples")), whole<int64_t>(j.at("global_batch")),
          whole<uint64_t>(j.at("seed")),   j.at("shuffle").get<bool>(),
          j.at("drop_last").get<bool>()};
}

Manifest read_manifest(const Json& j) {
  Manifest m;
  m.type = j.at("type").get<std::string>();
  m.save = j.at("save").get<std::string>();
  m.sequence = whole<int64_t>(j.at("sequence"));
  m.model = j.at("model").get<std::string>();
  m.graph = j.at("graph_hash").get<std::string>();
  m.world = whole<int>(j.at("world"));
  m.strategy = j.at("strategy").get<std::string>();
  m.wrap = j.at("wrap").get<std::string>();
  m.step = whole<int64_t>(j.at("step"));
  m.sampler = read_sampler(j.at("sampler"));
  m.schedule = j.at("schedule").get<std::string>();
  m.lr = j.at("lr").get<double>();
  m.optimizer = j.at("optimizer").get<std::string>();
  m.states =
      read_list<std::string>(j.at("states"), [](const Json& x) { return x.get<std::string>(); });
  if (const Json& s = j.at("loss_scale"); !s.is_null()) {
    m.loss_scale = SavedLossScale{s.at("scale").get<double>(), whole<int64_t>(s.at("good_updates")),
                                  whole<int64_t>(s.at("skipped_updates"))};
  }
  if (const Json& e = j.at("evaluation"); !e.is_null()) {
    m.evaluation =
        SavedEvaluation{optional_of<double>(e.at("loss")), optional_of<double>(e.at("accuracy"))};
  }
  m.trained = read_list<NamedTensor>(j.at("trained"), read_tensor);
  m.statistics = read_list<NamedTensor>(j.at("statistics"), read_tensor);
  m.units = read_list<UnitLayout>(j.at("units"), read_unit);
  m.files = read_list<CheckpointFile>(j.at("files"), read_file);
  return m;
}

// What the JSON says of itself: that it is one of ours, of this version, and unharmed.
Status check_envelope(const Json& j) {
  if (!j.is_object() || j.value("format", Json()) != kFormat) {
    return input_error("expected \"format\": \"{}\", found another file", kFormat);
  }
  const Json version = j.value("version", Json());
  if (version != kCheckpointVersion) {
    return input_error("expected version {}, found {}", kCheckpointVersion, version.dump());
  }
  const Json said = j.value("crc32c", Json());
  Json rest = j;
  rest.erase("crc32c");
  const uint32_t found = checksum_of(line_of(rest));
  if (said == found) return ok_status();
  return input_error("its own checksum is {}, but its content gives {}: it was changed",
                     said.dump(), found);
}

}  // namespace

Status check_manifest(const Manifest& manifest);  // manifest_check.cpp

std::string to_text(const Manifest& m) {
  Json j = {{"format", kFormat},
            {"version", kCheckpointVersion},
            {"type", m.type},
            {"save", m.save},
            {"sequence", m.sequence},
            {"model", m.model},
            {"graph_hash", m.graph},
            {"world", m.world},
            {"strategy", m.strategy},
            {"wrap", m.wrap},
            {"step", m.step},
            {"sampler", json_of(m.sampler)},
            {"schedule", m.schedule},
            {"lr", m.lr},
            {"optimizer", m.optimizer},
            {"states", m.states},
            {"loss_scale", nullptr},
            {"evaluation", nullptr},
            {"trained", list_of(m.trained)},
            {"statistics", list_of(m.statistics)},
            {"units", list_of(m.units)},
            {"files", list_of(m.files)}};
  if (m.loss_scale) {
    j["loss_scale"] = {{"scale", m.loss_scale->scale},
                       {"good_updates", m.loss_scale->good_updates},
                       {"skipped_updates", m.loss_scale->skipped_updates}};
  }
  if (m.evaluation) {
    j["evaluation"] = {{"loss", or_null(m.evaluation->loss)},
                       {"accuracy", or_null(m.evaluation->accuracy)}};
  }
  j["crc32c"] = checksum_of(line_of(j));
  return lines_of(j);
}

Result<Manifest> parse_manifest(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    OFSDP_RETURN_IF_ERROR(check_envelope(j));
    Manifest manifest = read_manifest(j);
    OFSDP_RETURN_IF_ERROR(check_manifest(manifest));
    return manifest;
  } catch (const std::exception& error) {
    return input_error("expected a manifest as JSON, found: {}", error.what());
  }
}

std::string to_text(const std::vector<CheckpointFile>& files) { return line_of(list_of(files)); }

Result<std::vector<CheckpointFile>> parse_files(const std::string& text) {
  try {
    return read_list<CheckpointFile>(Json::parse(text), read_file);
  } catch (const std::exception& error) {
    return input_error("expected a list of files as JSON, found: {}", error.what());
  }
}

}  // namespace ofsdp::fsdp
