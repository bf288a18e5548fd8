#include "plugins/loading/library.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <fstream>

#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::plugins {
namespace {

// --- the host's functions ---

void host_log(const ofsdp_host*, int32_t level, const char* message) {
  print_lines(stderr, format_text("plug-in: {}{}\n", level == OFSDP_LOG_WARNING ? "warning: " : "",
                                  message));
}

int32_t host_threads(const ofsdp_host*) { return pool_threads(); }

void host_parallel_for(const ofsdp_host*, int64_t n, int64_t grain,
                       void (*body)(void*, int64_t, int64_t), void* data) {
  parallel_for(n, grain, [=](int64_t begin, int64_t end) { body(data, begin, end); });
}

PluginNode& node_of(const ofsdp_node* node) { return *static_cast<PluginNode*>(node->context); }

void host_set_error(const ofsdp_node* node, const char* message) {
  node_of(node).set_error(message);
}

int32_t host_set_output(const ofsdp_node* node, size_t index, int32_t dtype, int32_t rank,
                        const int64_t* shape) {
  return node_of(node).set_output(index, dtype, rank, shape);
}

const ofsdp_attribute* host_attribute(const ofsdp_node* node, const char* name) {
  return node_of(node).attribute(name);
}

// --- files ---

// The machine that an ELF file of 64 bits is for; 0: no such file.
Result<int> elf_machine(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return input_error("{}: cannot be opened", path);
  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  OFSDP_REJECT_IF(!file || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0,
                  "{}: is no shared library (ELF)", path);
  OFSDP_REJECT_IF(header.e_ident[EI_CLASS] != ELFCLASS64,
                  "{}: is a library of 32 bits, expected one of 64", path);
  return static_cast<int>(header.e_machine);
}

std::string machine_name(int machine) {
  if (machine == EM_X86_64) return "x86-64";
  return machine == EM_AARCH64 ? "AArch64" : format_text("machine {}", machine);
}

Status check_machine(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const int machine, elf_machine(path));
  OFSDP_ASSIGN_OR_RETURN(const int own, elf_machine("/proc/self/exe"));
  if (machine == own) return {};
  return input_error("{}: is built for {}, expected {}", path, machine_name(machine),
                     machine_name(own));
}

// --- completeness ---

std::string text(const char* given) { return given == nullptr ? "" : given; }

Result<std::vector<ofsdp_operand>> operands(const ofsdp_operand* const* list, size_t count,
                                            const std::string& what) {
  std::vector<ofsdp_operand> made;
  bool optional = false;
  for (size_t i = 0; i < count; ++i) {
    made.push_back(whole(list[i]));
    if (text(made[i].name).empty()) return input_error("{} {} has no name", what, i);
    OFSDP_REJECT_IF(made[i].types == 0, "{} '{}' has no allowed type", what, made[i].name);
    const bool may_lack = (made[i].flags & OFSDP_OPTIONAL) != 0;
    OFSDP_REJECT_IF(optional && !may_lack, "{} '{}' is needed, but one before it is optional", what,
                    made[i].name);
    optional = may_lack;
  }
  return made;
}

Status check_functions(const PluginOperator& op) {
  if (op.outputs.empty()) return input_error("it has no output");
  if (op.def.forward == nullptr) return input_error("it has no forward");
  OFSDP_REJECT_IF(op.def.infer == nullptr && op.inputs.empty(),
                  "it has neither infer nor an input that its output could be like");
  OFSDP_REJECT_IF(op.def.backward != nullptr && op.def.build_backward != nullptr,
                  "it has both backward and build_backward, expected one of them");
  return {};
}

Result<std::shared_ptr<PluginOperator>> make_operator(const PluginLibraryPtr& library,
                                                      const ofsdp_operator* given) {
  auto op = std::make_shared<PluginOperator>();
  op->library = library;
  op->host = library->host();
  op->def = whole(given);
  op->domain = text(op->def.domain) == "ai.onnx" ? "" : text(op->def.domain);
  op->name = text(op->def.name);
  if (op->name.empty()) return input_error("{}: an operator has no name", library->path());
  const std::string where = format_text("{}: operator {}", library->path(), op->full_name());
  OFSDP_REJECT_IF(op->domain.starts_with("ofsdp"), "{}: the domain is the program's own", where);
  OFSDP_ASSIGN_OR_RETURN(op->inputs,
                         prefixed(where, operands(op->def.inputs, op->def.num_inputs, "input")));
  OFSDP_ASSIGN_OR_RETURN(op->outputs,
                         prefixed(where, operands(op->def.outputs, op->def.num_outputs, "output")));
  for (size_t i = 0; i < op->def.num_attributes; ++i) {
    op->attributes.push_back(whole(op->def.attributes[i]));
    const ofsdp_attribute& made = op->attributes.back();
    OFSDP_REJECT_IF(text(made.name).empty() || made.type < OFSDP_INT || made.type > OFSDP_FLOATS,
                    "{}: attribute {} has no name or no type", where, i);
  }
  OFSDP_RETURN_IF_ERROR(check_functions(*op).with_prefix(where));
  return op;
}

}  // namespace

ofsdp_host plugin_host() {
  return {.struct_size = sizeof(ofsdp_host),
          .version = OFSDP_PLUGIN_VERSION,
          .context = nullptr,
          .log = host_log,
          .threads = host_threads,
          .parallel_for = host_parallel_for,
          .set_error = host_set_error,
          .set_output = host_set_output,
          .attribute = host_attribute};
}

Result<PluginLibraryPtr> PluginLibrary::open(const std::string& path) {
  std::shared_ptr<PluginLibrary> library(new PluginLibrary);
  OFSDP_RETURN_IF_ERROR(library->load(path));
  OFSDP_RETURN_IF_ERROR(library->describe());
  return PluginLibraryPtr(std::move(library));
}

PluginLibrary::~PluginLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

Status PluginLibrary::load(const std::string& path) {
  path_ = path;
  host_ = plugin_host();
  OFSDP_RETURN_IF_ERROR(check_machine(path));
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) return input_error("{}: cannot be loaded: {}", path, dlerror());
  return {};
}

Status PluginLibrary::describe() {
  void* symbol = dlsym(handle_, "ofsdp_plugin_entry");
  OFSDP_REJECT_IF(symbol == nullptr, "{}: is no plug-in: it has no function ofsdp_plugin_entry",
                  path_);
  const ofsdp_plugin* given = nullptr;
  try {
    given = reinterpret_cast<ofsdp_plugin_entry_function>(symbol)(&host_);
  } catch (...) {
    return input_error("{}: ofsdp_plugin_entry threw an exception", path_);
  }
  if (given == nullptr) return input_error("{}: ofsdp_plugin_entry gave nothing", path_);
  plugin_ = whole(given);
  OFSDP_REJECT_IF(plugin_.version > OFSDP_PLUGIN_VERSION,
                  "{}: is built against version {} of ofsdp_plugin.h, newer than {}", path_,
                  plugin_.version, OFSDP_PLUGIN_VERSION);
  if (plugin_.version == 0) return input_error("{}: states no version of ofsdp_plugin.h", path_);
  if (plugin_.num_operators + plugin_.num_optimizers > 0) return {};
  return input_error("{}: offers neither an operator nor an optimizer", path_);
}

Result<std::vector<std::shared_ptr<PluginOperator>>> plugin_operators(
    const PluginLibraryPtr& library) {
  std::vector<std::shared_ptr<PluginOperator>> made;
  const ofsdp_plugin& plugin = library->description();
  for (size_t i = 0; i < plugin.num_operators; ++i) {
    OFSDP_ASSIGN_OR_RETURN(auto op, make_operator(library, plugin.operators[i]));
    made.push_back(std::move(op));
  }
  return made;
}

Result<std::vector<ofsdp_optimizer>> plugin_optimizers(const PluginLibrary& library) {
  std::vector<ofsdp_optimizer> made;
  const ofsdp_plugin& plugin = library.description();
  for (size_t i = 0; i < plugin.num_optimizers; ++i) {
    made.push_back(whole(plugin.optimizers[i]));
    OFSDP_REJECT_IF(text(made[i].name).empty() || made[i].update == nullptr,
                    "{}: optimizer {} has no name or no update", library.path(), i);
    OFSDP_REJECT_IF((made[i].direction == nullptr) != (made[i].step_length == nullptr),
                    "{}: optimizer {} has one of direction and step_length, expected both or none",
                    library.path(), made[i].name);
  }
  return made;
}

}  // namespace ofsdp::plugins
