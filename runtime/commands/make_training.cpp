#include "runtime/commands/make_training.h"

#include <cstdio>
#include <fstream>

#include "importer/export/graph_model.h"
#include "importer/write/model_output.h"
#include "importer/write/output_files.h"
#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"
#include "runtime/commands/training_algorithm.h"
#include "runtime/plan/predict/absent_ranks.h"
#include "runtime/plan/run_optimizer.h"

namespace ofsdp::runtime {
namespace {

Status append(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.flush() ? ok_status() : fault("{}: cannot be written", path);
}

Status write_training_info(const Options& options, const ModelSetup& setup) {
  const std::string& path = options.files.output;
  OFSDP_ASSIGN_OR_RETURN(const auto decays, weight_decays(options.optimizer, setup.graph));
  OFSDP_ASSIGN_OR_RETURN(const std::string more, training_algorithm(options, setup, decays));
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(setup.file, path));
  OFSDP_RETURN_IF_ERROR(append(output.model_temporary(), more));
  OFSDP_RETURN_IF_ERROR(output.finish());
  OFSDP_RETURN_IF_ERROR(output.commit());
  print_lines(stdout, format_text("wrote {} with its training_info\n", path));
  return {};
}

Status write_graph(const Options& options, const ModelSetup& setup) {
  const std::string& path = options.files.output;
  OFSDP_RETURN_IF_ERROR(check_output_path(path, setup.file));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, setup.source->gradient_graph(setup.batch.batch_size));
  std::map<ValueId, std::string> names{{graph.loss, graph.value(graph.loss).name}};
  graph.outputs = {graph.loss};
  for (const Parameter& p : graph.parameters) {
    names[p.value] = p.name;
    if (!p.trained || p.gradient == 0) continue;
    names[p.gradient] = p.name + "_grad";
    graph.outputs.push_back(p.gradient);
  }
  for (const ValueId id : graph.inputs) names[id] = graph.value(id).name;
  OFSDP_ASSIGN_OR_RETURN(const std::string bytes, graph_model(graph, setup.file, names));
  OFSDP_RETURN_IF_ERROR(
      write_whole(path, [&](const std::string& temporary) { return append(temporary, bytes); }));
  print_lines(stdout, format_text("wrote {}: the loss '{}' and {} gradients, for batches of {}\n",
                                  path, escaped(names.at(graph.loss)), graph.outputs.size() - 1,
                                  setup.batch.batch_size));
  return {};
}

}  // namespace

Status make_training(const Options& options, const ModelOrigin& origin, const Registry& registry) {
  if (options.files.output.empty()) {
    return input_error("fsdp-run make-training: expected -o OUT.onnx, found none");
  }
  MemoryLedger ledger;
  const auto communicator = make_absent_ranks(1, 1, true);
  OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                         ModelSetup::make(options, origin, registry, *communicator, ledger));
  OFSDP_REJECT_IF(setup.source->settings().losses.size() > 1 || !options.teacher.path.empty(),
                  "fsdp-run make-training: expected one --loss and no --teacher, found {}",
                  options.teacher.path.empty() ? "several" : "--teacher " + options.teacher.path);
  return options.form == "graph" ? write_graph(options, setup)
                                 : write_training_info(options, setup);
}

}  // namespace ofsdp::runtime
