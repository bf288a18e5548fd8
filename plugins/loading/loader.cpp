#include "plugins/loading/loader.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::plugins {
namespace {

class ForwardKernel final : public PluginKernel {
 public:
  ForwardKernel(const PluginOperatorPtr& op, const Problem& p)
      : PluginKernel(OFSDP_FORWARD, op, p.attributes, p.inputs, p.outputs) {}

 private:
  void use(const KernelArgs& args) override {
    for (size_t i = 0; i < args.inputs.size(); ++i) node().inputs().set(i, args.inputs[i].data);
    for (size_t i = 0; i < args.outputs.size(); ++i) node().outputs().set(i, args.outputs[i].data);
  }
};

std::vector<TensorDesc> wanted_outputs(const PluginOperator& op, const InferContext& c) {
  std::vector<TensorDesc> descs(op.outputs.size());
  for (size_t i = 0; i < descs.size() && i < c.wanted.size(); ++i) {
    if (c.wanted[i]) descs[i] = {DType::kFloat32, {}};
  }
  return descs;
}

Status check_outputs(const PluginOperator& op, const InferContext& c,
                     const std::vector<TensorDesc>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = i < c.wanted.size() && c.wanted[i];
    if (!outputs[i].present()) {
      if (!wanted) continue;
      return input_error("the plug-in's infer gives no type and shape of output '{}'",
                         op.outputs[i].name);
    }
    OFSDP_REJECT_IF(!in_types(op.outputs[i].types, outputs[i].dtype),
                    "the plug-in's infer gives output '{}' as {}, a type it does not declare",
                    op.outputs[i].name, outputs[i].text());
    for (const int64_t axis : outputs[i].shape.axes()) {
      if (axis >= 0) continue;
      return input_error("the plug-in's infer gives output '{}' as {}", op.outputs[i].name,
                         outputs[i].text());
    }
  }
  return {};
}

Result<std::vector<TensorDesc>> infer(const PluginOperatorPtr& op, const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_operands(*op, c.attributes, c.inputs));
  OFSDP_REJECT_IF(c.wanted.size() > op->outputs.size(), "expected at most {} outputs, found {}",
                  op->outputs.size(), c.wanted.size());
  PluginNode node(op, c.attributes, c.inputs, wanted_outputs(*op, c));
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (c.constant(i) != nullptr) node.inputs().set(i, c.constant(i)->bytes.data());
  }
  std::vector<TensorDesc> outputs(op->outputs.size());
  if (op->def.infer == nullptr) {
    for (size_t i = 0; i < c.wanted.size(); ++i)
      outputs[i] = {c.inputs[0].dtype, c.inputs[0].shape};
  } else {
    OFSDP_RETURN_IF_ERROR(
        node.call(ErrorKind::kInput, "infer", [&] { return op->def.infer(&node.node()); }));
    outputs = node.outputs_set();
  }
  OFSDP_RETURN_IF_ERROR(check_outputs(*op, c, outputs));
  return outputs;
}

GradFn grad_of(const PluginOperatorPtr& op) {
  if (op->def.build_backward != nullptr) return [op](GradBuilder& b) { build_backward(op, b); };
  if (op->def.backward != nullptr) return [op](GradBuilder& b) { emit_backward(op, b); };
  for (const ofsdp_operand& input : op->inputs) {
    if (!no_gradient(input)) return nullptr;
  }
  return [](GradBuilder&) {};  // nothing to differentiate
}

bool has_type(const PluginOperator& op, DType dtype) {
  for (const ofsdp_operand& input : op.inputs) {
    if (in_types(input.types, DType::kFloat32) && !in_types(input.types, dtype)) return false;
  }
  return true;
}

std::vector<Implementation> forward_kernels(const PluginOperatorPtr& op) {
  return {{"plug-in",
           [op](const Problem& p) {
             return p.all_plain() && check_operands(*op, p.attributes, p.inputs).ok();
           },
           [op](const Problem& p) { return std::make_unique<ForwardKernel>(op, p); }}};
}

Status check_attributes(const PluginOperator& op, const Attributes& attributes) {
  for (const auto& [name, value] : attributes.all()) {
    const auto declared = std::ranges::find_if(
        op.attributes, [&, &name = name](const auto& a) { return name == a.name; });
    OFSDP_REJECT_IF(declared == op.attributes.end(),
                    "has an attribute '{}' that the plug-in does not declare", name);
    OFSDP_REJECT_IF(plugin_attribute(name, value).type != declared->type,
                    "attribute '{}' has another type than the plug-in declares", name);
  }
  for (const ofsdp_attribute& declared : op.attributes) {
    OFSDP_REJECT_IF(declared.required != 0 && !attributes.has(declared.name),
                    "lacks the attribute '{}'", declared.name);
  }
  return {};
}

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

// Returns a 64-bit ELF file's machine; 0: it is none.
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

Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs) {
  OFSDP_REJECT_IF(inputs.size() > op.inputs.size(), "expected at most {} inputs, found {}",
                  op.inputs.size(), inputs.size());
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const ofsdp_operand& declared = op.inputs[i];
    const bool present = i < inputs.size() && inputs[i].present();
    if (!present && (declared.flags & OFSDP_OPTIONAL) != 0) continue;
    if (!present) return input_error("lacks the input '{}'", declared.name);
    if (in_types(declared.types, inputs[i].dtype)) continue;
    return input_error("input '{}' is {}, a type that the plug-in does not take", declared.name,
                       inputs[i].text());
  }
  return check_attributes(op, attributes);
}

bool of_plugin(const OpDef& op) { return !op.cpu.empty() && op.cpu[0].name == "plug-in"; }

OpDef plugin_op_def(const PluginOperatorPtr& op) {
  OpDef def;
  def.domain = op->domain;
  def.name = op->name;
  def.min_inputs = 0;  // infer says which one is missing
  def.first_opset = std::max(op->def.since_version, 1);
  def.last_opset = op->def.until_version;
  def.infer = [op](const InferContext& c) { return infer(op, c); };
  def.grad = grad_of(op);
  def.cpu = forward_kernels(op);
  def.float32_only = !has_type(*op, DType::kBFloat16) || !has_type(*op, DType::kFloat16);
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    if ((op->inputs[i].flags & OFSDP_KNOWN) != 0) {
      def.constant_inputs.push_back(static_cast<int>(i));
    }
  }
  return def;
}

OpDef overridden(const OpDef& built_in, const PluginOperatorPtr& op) {
  OpDef def = built_in;
  def.cpu = forward_kernels(op);
  def.cpu.insert(def.cpu.end(), built_in.cpu.begin(), built_in.cpu.end());
  def.view = false;
  def.inplace_inputs.clear();
  def.layout = LayoutRule::kPlain;
  if (op->def.backward != nullptr || op->def.build_backward != nullptr) def.grad = grad_of(op);
  return def;
}

namespace {

class DevicePluginKernel final : public Kernel {
 public:
  DevicePluginKernel(std::unique_ptr<PluginKernel> kernel, void* stream)
      : kernel_(std::move(kernel)), stream_(stream) {}

  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    const StepContext step{args.step->seed, -1, {}};
    return kernel_->put({args.inputs, args.outputs, args.workspace, &step}, stream_);
  }

 private:
  std::unique_ptr<PluginKernel> kernel_;
  void* stream_;
};

}  // namespace

bool plugin_takes(const OpDef& op, const Problem& problem) {
  return of_plugin(op) && op.cpu[0].accepts(problem);
}

std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op,
                                           const Problem& problem) {
  // A plug-in's implementation makes no other kernel.
  std::unique_ptr<PluginKernel> kernel(
      static_cast<PluginKernel*>(op.cpu[0].create(problem).release()));
  if (!kernel->on_devices()) return nullptr;
  return std::make_unique<DevicePluginKernel>(std::move(kernel), device.native_compute());
}

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

namespace {

ofsdp_update update_of(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  return {.struct_size = sizeof(ofsdp_update),
          .param = span.param,
          .grad = span.grad,
          .state = span.state,
          .count = span.count,
          .step = span.step,
          .lr = span.lr,
          .weight_decay = span.weight_decay,
          .momentum = s.momentum,
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .rho = s.rho,
          .nesterov = s.nesterov ? 1 : 0};
}

OptimizerDef optimizer_def(const PluginLibraryPtr& library, const ofsdp_optimizer& given) {
  OptimizerDef def;
  def.name = format_text("plugin:{}", given.name);
  const std::vector<std::string> states(given.states, given.states + given.num_states);
  def.states = [states](const OptimizerSettings&) { return states; };
  def.update = [library, given](const OptimizerSettings& s, const OptimizerSpan<float>& span) {
    const ofsdp_update update = update_of(s, span);
    given.update(library->host(), &update);
  };
  if (given.direction == nullptr) return def;
  def.direction = [library, given](const OptimizerSettings& s, const OptimizerSpan<float>& span,
                                   float* direction) {
    const ofsdp_update update = update_of(s, span);
    given.direction(library->host(), &update, direction);
  };
  def.step_length = [library, given](const OptimizerSettings& s, const ParameterNorms& n) {
    const ofsdp_update whole = update_of(s, {nullptr, nullptr, nullptr, n.count, n.lr, 0, n.step});
    return given.step_length(library->host(), &whole, n.param, n.direction);
  };
  return def;
}

class Loader {
 public:
  explicit Loader(bool may_override) : may_override_(may_override) {}

  Result<LoadedPlugins> load(const std::vector<std::string>& names) {
    const char* search = std::getenv("OFSDP_PLUGIN_PATH");
    loaded_.optimizers = optimizer_list();
    for (const std::string& name : names) {
      OFSDP_ASSIGN_OR_RETURN(const std::string path,
                             find_plugin(name, search == nullptr ? "" : search));
      OFSDP_ASSIGN_OR_RETURN(PluginLibraryPtr library, PluginLibrary::open(path));
      OFSDP_RETURN_IF_ERROR(add(library));
      loaded_.libraries.push_back(std::move(library));
    }
    fill_registry();
    return std::move(loaded_);
  }

 private:
  Status add(const PluginLibraryPtr& library) {
    OFSDP_ASSIGN_OR_RETURN(auto operators, plugin_operators(library));
    for (auto& op : operators) {
      OFSDP_RETURN_IF_ERROR(claim("operator " + op->full_name(), library->path()));
      OFSDP_REJECT_IF(built_in_.find(op->domain, op->name) != nullptr && !may_override_,
                      "{}: operator {} is built in; --plugin-override lets a plug-in replace it",
                      library->path(), op->full_name());
      op->known = known_;
      loaded_.operators.push_back(std::move(op));
    }
    OFSDP_ASSIGN_OR_RETURN(const auto optimizers, plugin_optimizers(*library));
    for (const ofsdp_optimizer& optimizer : optimizers) {
      OFSDP_RETURN_IF_ERROR(claim(format_text("optimizer {}", optimizer.name), library->path()));
      loaded_.optimizers.push_back(optimizer_def(library, optimizer));
    }
    return {};
  }

  Status claim(const std::string& what, const std::string& path) {
    const auto [owner, first] = owners_.try_emplace(what, path);
    if (first) return {};
    return input_error("{}: {} is already offered by {}", path, what, owner->second);
  }

  void fill_registry() {
    std::map<std::string, PluginOperatorPtr> own;
    for (const PluginOperatorPtr& op : loaded_.operators) own[op->full_name()] = op;
    for (const auto& [key, op] : built_in_.all()) {
      const auto replaced = own.find(op.full_name());
      loaded_.registry.add(replaced == own.end() ? op : overridden(op, replaced->second));
    }
    for (const PluginOperatorPtr& op : loaded_.operators) {
      if (built_in_.find(op->domain, op->name) == nullptr) loaded_.registry.add(plugin_op_def(op));
      if (has_backward_kernel(*op)) loaded_.registry.add(plugin_backward_def(op));
    }
    for (const auto& [key, op] : loaded_.registry.all()) known_->push_back(op.full_name());
  }

  bool may_override_;
  Registry built_in_ = make_registry();
  LoadedPlugins loaded_;
  std::map<std::string, std::string> owners_;
  std::shared_ptr<std::vector<std::string>> known_ = std::make_shared<std::vector<std::string>>();
};

}  // namespace

Result<std::string> find_plugin(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return name;
  std::error_code ignored;
  for (size_t begin = 0; begin <= search_path.size();) {
    const size_t end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    for (const std::string& file : {name, name + ".so", "lib" + name + ".so"}) {
      const std::string path = folder + "/" + file;
      if (!folder.empty() && std::filesystem::is_regular_file(path, ignored)) return path;
    }
    begin = end + 1;
  }
  const bool here = std::filesystem::is_regular_file(name, ignored);
  return input_error("--plugin {}: no such file in OFSDP_PLUGIN_PATH '{}'{}", name, search_path,
                     here ? format_text("; the one here is ./{}", name) : "");
}

Result<LoadedPlugins> load_plugins(const std::vector<std::string>& names, bool may_override) {
  auto loaded = Loader(may_override).load(names);
  if (loaded.ok() || loaded.error().message().starts_with("--plugin")) return loaded;
  return std::move(loaded).status().with_prefix("--plugin");
}

}  // namespace ofsdp::plugins
