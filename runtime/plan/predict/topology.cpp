#include "runtime/plan/predict/topology.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <variant>

#include "kernels/base/readable.h"

namespace ofsdp::runtime {
namespace {

constexpr int kMaxHosts = 1 << 20;

class TopologyReader {
 public:
  explicit TopologyReader(const std::string& origin) : origin_(origin) {}

  Result<Topology> read(const YAML::Node& root) {
    OFSDP_RETURN_IF_ERROR(read_map(root, "",
                                   {{"hosts", &topology_.hosts},
                                    {"ranks_per_host", &topology_.ranks_per_host},
                                    {"inside", &topology_.inside},
                                    {"between", &topology_.between},
                                    {"compute_factor", &topology_.compute_factor},
                                    {"contention", &topology_.contention},
                                    {"overlap", &topology_.overlap}}));
    OFSDP_RETURN_IF_ERROR(need(topology_.ranks_per_host < 2 || root["inside"], "inside"));
    OFSDP_RETURN_IF_ERROR(need(topology_.hosts < 2 || root["between"], "between"));
    return topology_;
  }

 private:
  using Targets = std::map<std::string, std::variant<int*, double*, bool*, Link*>>;

  Status read_map(const YAML::Node& node, const std::string& where, const Targets& targets) const {
    if (!node.IsMap()) return input_error("{}: {}expected a mapping", origin_, where);
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      if (!seen.insert(key).second) {
        return input_error("{} line {}: {}'{}' stands here twice", origin_,
                           entry.first.Mark().line + 1, where, key);
      }
      const auto target = targets.find(key);
      if (target == targets.end())
        return input_error("{}: {}unknown key '{}'", origin_, where, key);
      OFSDP_RETURN_IF_ERROR(
          std::visit([&](auto* value) { return read_value(where + key, entry.second, *value); },
                     target->second));
    }
    return {};
  }

  Status need(bool there, const std::string& key) const {
    return there ? Status{}
                 : input_error("{}: expected {}: {{alpha_us: , beta_gbs: }}, found nothing",
                               origin_, key);
  }

  Status wrong(const std::string& key, const char* expected, const YAML::Node& node) const {
    return input_error("{}: {}: expected {}, found '{}'{}", origin_, key, expected, shown(node),
                       beyond_numbers(shown(node)));
  }

  Status read_value(const std::string& key, const YAML::Node& node, double& value) const {
    if (YAML::convert<double>::decode(node, value) && value > 0 && std::isfinite(value)) return {};
    return wrong(key, "a number above 0", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, int& value) const {
    if (YAML::convert<int>::decode(node, value) && value >= 1 && value <= kMaxHosts) return {};
    return wrong(key, "a whole number of at least 1", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, bool& value) const {
    return YAML::convert<bool>::decode(node, value) ? Status{} : wrong(key, "on or off", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, Link& link) const {
    double alpha_us = 0, beta_gbs = 0;
    OFSDP_RETURN_IF_ERROR(
        read_map(node, key + ": ", {{"alpha_us", &alpha_us}, {"beta_gbs", &beta_gbs}}));
    OFSDP_RETURN_IF_ERROR(need(alpha_us > 0 && beta_gbs > 0, key));
    link = {alpha_us * 1e-6, beta_gbs * 1e9};
    return {};
  }

  static std::string shown(const YAML::Node& node) {
    return node.IsScalar() ? node.Scalar() : YAML::Dump(node);
  }

  const std::string& origin_;
  Topology topology_;
};

}  // namespace

int Topology::hosts_of(const RankGroup& group) const {
  const int first = group.first / ranks_per_host;
  const int last = group.rank(group.count - 1) / ranks_per_host;
  return std::min(last - first + 1, group.count);
}

double Topology::all_gather(const RankGroup& group, double bytes) const {
  if (group.count < 2) return 0;
  const int crossing = hosts_of(group) - 1, steps = group.count - 1;
  double beta = between.beta;
  if (crossing == 0) beta = inside.beta;
  if (crossing > 0 && crossing < steps) beta = std::min(inside.beta, between.beta);
  return crossing * between.alpha + (steps - crossing) * inside.alpha +
         bytes * steps / group.count / beta;
}

Result<Topology> parse_topology(const std::string& yaml, const std::string& origin) {
  try {
    return TopologyReader(origin).read(YAML::Load(yaml));
  } catch (const YAML::Exception& error) {
    return input_error("{}:{}: {}", origin, error.mark.line + 1, error.msg);
  }
}

Result<Topology> read_topology(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) return input_error("--topology {}: cannot be read", path);
  return parse_topology(text.str(), path);
}

}  // namespace ofsdp::runtime
