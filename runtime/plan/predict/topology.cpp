#include "runtime/plan/predict/topology.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace ofsdp::runtime {
namespace {

constexpr int kMostHosts = 1 << 20;

class TopologyReader {
 public:
  explicit TopologyReader(const std::string& origin) : origin_(origin) {}

  Result<Topology> read(const YAML::Node& root) {
    OFSDP_RETURN_IF_ERROR(read_map(
        root, "",
        {
            {"hosts", [&](const YAML::Node& n) { return count("hosts", n, topology_.hosts); }},
            {"ranks_per_host",
             [&](const YAML::Node& n) {
               return count("ranks_per_host", n, topology_.ranks_per_host);
             }},
            {"inside", [&](const YAML::Node& n) { return link("inside", n, topology_.inside); }},
            {"between", [&](const YAML::Node& n) { return link("between", n, topology_.between); }},
            {"compute_factor",
             [&](const YAML::Node& n) {
               return above_zero("compute_factor", n, topology_.compute_factor);
             }},
            {"contention",
             [&](const YAML::Node& n) {
               return above_zero("contention", n, topology_.contention);
             }},
            {"overlap", [&](const YAML::Node& n) { return toggle(n); }},
        }));
    OFSDP_RETURN_IF_ERROR(need(topology_.ranks_per_host < 2 || root["inside"], "inside"));
    OFSDP_RETURN_IF_ERROR(need(topology_.hosts < 2 || root["between"], "between"));
    return topology_;
  }

 private:
  using Readers = std::map<std::string, std::function<Status(const YAML::Node&)>>;

  Status read_map(const YAML::Node& node, const std::string& where, const Readers& readers) const {
    if (!node.IsMap()) return input_error("{}: {}expected a mapping", origin_, where);
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      const auto reader = readers.find(key);
      if (reader == readers.end())
        return input_error("{}: {}unknown key '{}'", origin_, where, key);
      OFSDP_RETURN_IF_ERROR(reader->second(entry.second));
    }
    return {};
  }

  Status need(bool there, const char* key) const {
    return there ? Status{}
                 : input_error("{}: expected {}: {{alpha_us: , beta_gbs: }}, found nothing",
                               origin_, key);
  }

  Status above_zero(const std::string& key, const YAML::Node& node, double& value) const {
    if (YAML::convert<double>::decode(node, value) && value > 0 && std::isfinite(value)) return {};
    return input_error("{}: {}: expected a number above 0, found '{}'", origin_, key, shown(node));
  }

  Status count(const std::string& key, const YAML::Node& node, int& value) const {
    if (YAML::convert<int>::decode(node, value) && value >= 1 && value <= kMostHosts) return {};
    return input_error("{}: {}: expected a whole number of at least 1, found '{}'", origin_, key,
                       shown(node));
  }

  Status link(const std::string& key, const YAML::Node& node, Link& link) const {
    double alpha_us = 0, beta_gbs = 0;
    OFSDP_RETURN_IF_ERROR(read_map(
        node, key + ": ",
        {{"alpha_us",
          [&](const YAML::Node& n) { return above_zero(key + ": alpha_us", n, alpha_us); }},
         {"beta_gbs",
          [&](const YAML::Node& n) { return above_zero(key + ": beta_gbs", n, beta_gbs); }}}));
    OFSDP_RETURN_IF_ERROR(need(alpha_us > 0 && beta_gbs > 0, key.c_str()));
    link = {alpha_us * 1e-6, beta_gbs * 1e9};
    return {};
  }

  Status toggle(const YAML::Node& node) {
    if (YAML::convert<bool>::decode(node, topology_.overlap)) return {};
    return input_error("{}: overlap: expected on or off, found '{}'", origin_, shown(node));
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
