#include "runtime/train/setup/run_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/checkpoint/disk.h"
#include "fsdp/checkpoint/manifest.h"
#include "importer/write/model_output.h"
#include "kernels/base/text.h"
#include "plugins/loading/loader.h"
#include "runtime/log/log_parts.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/run_folder.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

std::string resolved_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  fs::path resolved = fs::weakly_canonical(absolute, error);
  if (error) resolved = absolute.lexically_normal();
  if (!resolved.has_filename()) resolved = resolved.parent_path();  // a slash at the end
  return resolved.string();
}

// Returns the deepest existing part's device and inode, and the rest of the path.
std::string identity_of(const std::string& resolved) {
  fs::path there(resolved), rest;
  struct stat info {};
  while (stat(there.c_str(), &info) != 0 && there != there.root_path()) {
    rest = there.filename() / rest;
    there = there.parent_path();
  }
  return format_text("{}:{}/{}", info.st_dev, info.st_ino, rest.string());
}

bool replaces_nothing(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && (S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode));
}

// Returns the files of a folder, without folders below.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (is_file(i->path().string())) files.push_back(i->path().string());
  }
  return files;
}

class Lister {
 public:
  Lister(const Options& options, const ModelOrigin& origin) : options_(options), origin_(origin) {}

  RunFiles list() {
    add_settings();
    const bool surveys = is(Command::kData) || is(Command::kPrepare);
    if (is(Command::kConfig) || is(Command::kPrepare)) {
      files_.writes("--output", options_.files.output);
    }
    if (surveys) files_.writes("--html", options_.report.html);
    if (is(Command::kExport)) add_export();
    const bool runs = surveys || is(Command::kConfig) || is(Command::kTrain) ||
                      is(Command::kEval) || is(Command::kPlan) || is(Command::kDoctor) ||
                      is(Command::kMakeTraining) || is(Command::kPredict);
    if (runs) add_outputs();
    if (!runs || !files_.any_output()) return std::move(files_);  // nothing to compare
    add_model();
    add_data();
    return std::move(files_);
  }

 private:
  bool is(Command command) const { return options_.command == command; }

  void add_settings() {
    for (const std::string& path : origin_.settings) files_.reads("a file of options", path);
    files_.reads("--hostfile", options_.launch.hostfile);
    files_.reads("--topology", options_.report.topology);
    const char* const secret = std::getenv("OFSDP_SECRET_FILE");
    files_.reads("OFSDP_SECRET_FILE", secret != nullptr ? secret : "");
    const char* const search = std::getenv("OFSDP_PLUGIN_PATH");
    for (const std::string& name : options_.plugins) {
      const auto path = plugins::find_plugin(name, search != nullptr ? search : "");
      if (path.ok()) files_.reads("--plugin", *path);
    }
  }

  // Returns null if the file is not a readable model.
  const OnnxFile* opened(const std::string& path) {
    const auto [place, added] = opened_.try_emplace(path);
    if (added && is_file(path)) {
      Result<OnnxFile> file = OnnxFile::open(path);
      if (file.ok()) place->second.emplace(*std::move(file));
    }
    return place->second ? &*place->second : nullptr;
  }

  // Adds a model file with external data.
  void add_onnx(const std::string& role, const std::string& path) {
    files_.reads(role, path);
    const OnnxFile* const file = opened(path);
    if (file == nullptr) return;
    for (const DataFile& data : file->contents().data_files) {
      files_.reads("the external data of " + role, data.file.path);
    }
  }

  void add_model() {
    const std::string& resume = options_.checkpoint.resume;
    add_onnx("the model", options_.model);
    if (!origin_.artifacts.empty()) {
      files_.reads_folder("the model", origin_.artifacts);
      for (const std::string& file : files_in(origin_.artifacts)) files_.reads("the model", file);
    }
    if (!options_.teacher.path.empty()) add_onnx("--teacher", options_.teacher.path);
    files_.reads("--lora-from", options_.edit.adapters.from);
    files_.reads("--class-weights", options_.class_weights);
    for (const auto& [name, value] : options_.inputs) {
      if (value.ends_with(".npy")) files_.reads("--input " + name, value);
    }
    if (resume == "latest") {
      const std::string folder = expected_run_folder(options_, origin_);
      add_checkpoints("--resume latest", checkpoint_folder(options_, folder));
    } else if (is_file(resume)) {
      add_onnx("--resume", resume);
    } else {
      add_checkpoints("--resume", resume);
    }
  }

  // Adds a checkpoint's files, or those of every checkpoint in a folder.
  void add_checkpoints(const std::string& role, const std::string& folder) {
    if (folder.empty()) return;
    std::vector<std::string> folders{folder};
    std::error_code error;
    for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
      folders.push_back(i->path().string());
    }
    for (const std::string& one : folders) {
      if (!is_file(join_path(one, kManifestName))) continue;
      for (const std::string& file : files_in(one)) files_.reads(role, file);
    }
  }

  void add_data() {
    const DataChoice& data = options_.run.data;
    const DataChoice& eval = options_.run.eval_data;
    const bool computed = data.kind == DataChoice::Kind::kComputed;
    const std::string path =
        computed ? join_path(parent_folder(options_.model), "data") : data.path;
    if (add_place("--data", path) || data.kind == DataChoice::Kind::kInline) {
      Options both = options_;  // `eval` reads one part, but no command replaces the other
      both.command = Command::kTrain;
      const auto spec = find_data(both);
      if (spec.ok()) add_columns("--data", spec->train);
      if (spec.ok() && spec->eval) add_columns("--data", *spec->eval);
    }
    if (eval.kind != DataChoice::Kind::kPath || !add_place("--eval-data", eval.path)) return;
    if (const auto spec = read_eval_spec(eval.path); spec.ok()) add_columns("--eval-data", *spec);
  }

  // Returns true if the place names other files: a folder, a YAML file or numbered shards.
  bool add_place(const std::string& flag, const std::string& path) {
    if (is_folder(path)) {
      files_.reads_folder(flag, path);
      return true;
    }
    files_.reads("a file of " + flag, path);
    const std::string extension = fs::path(path).extension().string();
    return extension == ".yaml" || extension == ".yml" || extension == ".tar";
  }

  void add_columns(const std::string& flag, const ColumnSet& set) {
    for (const ColumnSpec& column : set.columns) {
      add_column(flag, column.path);
      if (!column.offsets.empty()) add_column(flag, column.offsets);
      if (column.tokenizer) add_column(flag, column.tokenizer->path);
      if (!column.images) continue;
      for (const std::string& folder : column.images->folders) add_column(flag, folder);
      for (const std::string& shard : column.images->shards) add_column(flag, shard);
    }
  }

  void add_column(const std::string& flag, const std::string& path) {
    is_folder(path) ? files_.reads_all_in(flag, path) : files_.reads("a file of " + flag, path);
  }

  void add_outputs() {
    if (is(Command::kPlan)) files_.writes("--html", options_.report.html);
    if (is(Command::kDoctor)) files_.writes("--picture", options_.doctor.picture);
    if (is(Command::kPredict)) files_.writes("--output", options_.files.output);
    // Commands that examine a training refuse the same outputs.
    const bool trains = is(Command::kTrain) || is(Command::kPlan) || is(Command::kDoctor);
    if (trains || is(Command::kMakeTraining)) add_trained();
    if (trains) {
      add_adapter();
      files_.adds_to_folder("--checkpoint-dir", options_.checkpoint.dir);
      files_.writes("--report", options_.pictures.report);
    }
    if (is(Command::kTrain)) add_run_folder();
    if (trains || is(Command::kEval)) add_logs();
  }

  // Adds the files in the run's folder, under the name that it would get now.
  void add_run_folder() {
    const std::string folder = expected_run_folder(options_, origin_);
    if (folder.empty()) return;
    const auto in_folder = [&folder](const char* name) { return join_path(folder, name); };
    const bool taken = !options_.folder.taken.empty();
    files_.adds_to_folder(taken ? "the folder of the run" : "--run-dir",
                          taken ? folder : options_.folder.parent);
    const std::string role = "the folder of the run";
    for (const char* name : {"command.txt", "config.yaml", "log.txt", "report.html"}) {
      files_.writes(role, in_folder(name));
    }
    if (options_.files.metrics.empty()) files_.writes(role, in_folder("metrics.jsonl"));
    if (options_.checkpoint.dir.empty()) files_.adds_to_folder(role, in_folder("checkpoints"));
    if (!options_.files.output.empty()) return;
    origin_.artifacts.empty() ? add_written_model(role, in_folder("model.onnx"), options_.model)
                              : files_.replaces_folder(role, in_folder("model"));
  }

  void add_trained() {
    const std::string& path = options_.files.output;
    std::error_code error;
    const bool own = fs::equivalent(origin_.artifacts, path, error);  // which the source refuses
    if (own) return;
    if (!origin_.artifacts.empty()) return files_.replaces_folder("--output", path);
    const std::string& resume = options_.checkpoint.resume;
    add_written_model("--output", path, is_file(resume) ? resume : options_.model);
    if (path.empty()) return;
    for (const std::string& file : class_files_of(path)) files_.writes("class names", file);
  }

  // `input`: the model to which the written one corresponds, external data included.
  void add_written_model(const std::string& flag, const std::string& path,
                         const std::string& input) {
    files_.writes(flag, path);
    const OnnxFile* const file = path.empty() ? nullptr : opened(input);
    if (file == nullptr || file->contents().data_files.empty()) return;
    const auto locations = choose_locations(path, *file);
    if (!locations.ok()) return;
    for (const std::string& location : *locations) {
      files_.writes("the external data of " + flag, join_path(parent_folder(path), location));
    }
  }

  void add_adapter() {
    const std::string& path = options_.edit.adapter;
    files_.writes("--adapter", path);
    if (!path.ends_with(kPeftFile)) return;
    files_.writes("the configuration of --adapter", join_path(parent_folder(path), kPeftConfig));
  }

  void add_logs() {
    const OutputOptions& files = options_.files;
    files_.writes("--metrics", files.metrics);
    for (const std::string& log : files.log) {
      const std::string path = log.substr(log.find(':') + 1);
      log.starts_with("csv:") ? files_.writes("--log", path) : files_.adds_to_folder("--log", path);
    }
    files_.writes("--trace", files.trace);
    if (files.trace.empty()) return;
    files_.writes("a part of --trace", files.trace + ".part");
    for (int64_t rank = 0; rank < asked_ranks(options_.launch); ++rank) {
      files_.writes("a part of --trace", format_text("{}.rank{}.part", files.trace, rank));
    }
  }

  // Adds the files of `export`: a checkpoint and the model.
  void add_export() {
    add_checkpoints("the checkpoint", options_.model);
    const std::string& path = options_.files.output;
    const std::string model = model_of_checkpoint();
    if (model.empty()) return files_.writes("--output", path);
    add_onnx("the model of the checkpoint", model);
    add_adapter();
    const bool weights = options_.format == "safetensors" || path.ends_with(".safetensors");
    weights ? files_.writes("--output", path) : add_written_model("--output", path, model);
  }

  std::string model_of_checkpoint() const {
    std::string folder = options_.model;
    if (!is_file(join_path(folder, kManifestName))) {
      const auto names = complete_checkpoints(folder);
      if (!names.ok() || names->empty()) return "";
      folder = join_path(folder, names->front());
    }
    const Result<Manifest> manifest = read_manifest(folder);
    return manifest.ok() ? manifest->model : "";
  }

  const Options& options_;
  const ModelOrigin& origin_;
  RunFiles files_;
  std::map<std::string, std::optional<OnnxFile>> opened_;
};

}  // namespace

Status check_kind_of_output(const std::string& path) {
  constexpr std::string_view kOthers[] = {
      ".safetensors", ".pt",     ".pth", ".bin", ".ckpt", ".gguf", ".h5",          ".keras",
      ".pb",          ".tflite", ".npy", ".npz", ".csv",  ".ort",  ".onnx_adapter"};
  const std::string ending = fs::path(path).extension().string();
  OFSDP_REJECT_IF(std::ranges::count(kOthers, ending) > 0,
                  "-o {}: expected a file .onnx, as ONNX is written; fsdp-run export CHECKPOINT -o "
                  "FILE.safetensors writes weights alone",
                  escaped(path));
  return {};
}

Status check_run_files(const Options& options, const ModelOrigin& origin) {
  OFSDP_RETURN_IF_ERROR(Lister(options, origin).list().check());
  const bool writes_model =
      options.command == Command::kTrain || options.command == Command::kPlan ||
      options.command == Command::kDoctor || options.command == Command::kMakeTraining;
  const bool plain = writes_model && origin.artifacts.empty();
  return plain ? check_kind_of_output(options.files.output) : ok_status();
}

Status check_log_targets(const Options& options) {
  const OutputOptions& files = options.files;
  OFSDP_RETURN_IF_ERROR(check_log_target("--metrics", files.metrics));
  for (const std::string& log : files.log) {
    const std::string path = log.substr(log.find(':') + 1);
    if (log.starts_with("csv:")) OFSDP_RETURN_IF_ERROR(check_log_target("--log", path));
  }
  const std::string& page = options.pictures.report;
  if (options.command != Command::kEval && !page.empty()) {
    OFSDP_RETURN_IF_ERROR(check_output_path(page).with_prefix("--report"));
  }
  return check_log_target("--trace", files.trace);
}

void RunFiles::add(Use use, const std::string& name, const std::string& path) {
  if (path.empty() || replaces_nothing(path)) return;
  const std::string resolved = resolved_path(path);
  entries_.push_back({use, name, path, identity_of(resolved), resolved});
}

void RunFiles::reads(const std::string& role, const std::string& path) {
  add(Use::kReads, role, path);
}

void RunFiles::reads_folder(const std::string& role, const std::string& path) {
  add(Use::kReadsFolder, role, path);
}

void RunFiles::reads_all_in(const std::string& role, const std::string& path) {
  add(Use::kReadsAllIn, role, path);
}

void RunFiles::writes(const std::string& flag, const std::string& path) {
  add(Use::kWrites, flag, path);
}

void RunFiles::adds_to_folder(const std::string& flag, const std::string& path) {
  add(Use::kAddsTo, flag, path);
}

void RunFiles::replaces_folder(const std::string& flag, const std::string& path) {
  add(Use::kReplaces, flag, path);
}

bool RunFiles::any_output() const { return std::ranges::any_of(entries_, is_output); }

bool RunFiles::is_output(const Entry& entry) { return entry.use >= Use::kWrites; }

bool RunFiles::clash(const Entry& output, const Entry& other) {
  const auto is_in = [](const Entry& one, const Entry& folder) {
    return one.resolved.starts_with(folder.resolved + "/");
  };
  if (output.use == Use::kReplaces && is_in(other, output)) return true;
  if (other.use == Use::kReadsAllIn && is_in(output, other) && is_file(output.path)) return true;
  if (output.identity != other.identity) return false;
  // The writer itself refuses a folder in place of a file.
  if (output.use == Use::kWrites && other.use == Use::kReadsFolder) return false;
  return output.use != Use::kAddsTo || other.use != Use::kAddsTo;
}

Status RunFiles::refusal(const Entry& output, const Entry& other) {
  const bool same = other.name == "the model" && other.use == Use::kReads;
  return input_error("{} {}: expected another file than {}, found {}", output.name,
                     escaped(output.path), is_output(other) ? "that of " + other.name : other.name,
                     same ? other.name : escaped(other.path));
}

Status RunFiles::check() const {
  for (const Entry& output : entries_) {
    if (!is_output(output)) continue;
    for (const Entry& other : entries_) {
      if (&other != &output && clash(output, other)) return refusal(output, other);
    }
  }
  return {};
}

}  // namespace ofsdp::runtime
