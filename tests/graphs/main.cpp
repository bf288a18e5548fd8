// random_graphs: draws random models, trains each for a step and compares loss and gradients with
// ReferenceRun.
//
//   random_graphs [--count N] [--seed S] [--ways plain,eager,..|all] [--only RECIPE,..]
//                 [--found FOLDER] [--replay FOLDER] [--rotate] [--first] [--verbose]
//                 [--planted N,..]
//
// --rotate: each graph in one way, chosen by the seed; else in all of them.
// --first:  ends at the first defect, which is not cut down.
// --planted: the faults in planted.py that no graph has found yet, one after the other.
//
// Ways with several ranks fork. A process that trains has threads from then on, so it must not
// fork: these ways run in a separate process, next to the others.
//
// One line a defect, then a total. Exit status 1 if there was one.
#include <onnx/checker.h>
#include <onnx/defs/parser.h>
#include <onnx/defs/printer.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/cpu/parallel.h"
#include "tests/graphs/draw.h"
#include "tests/graphs/shrink.h"
#include "tests/graphs/trial.h"

namespace ofsdp::graphs {
namespace {

struct Arguments {
  int64_t count = 100;
  uint64_t seed = 1;
  std::string ways = "plain";
  Names only;
  std::string found;   // folder for failing graphs; empty: none
  std::string replay;  // a folder of such files
  bool rotate = false, first = false, verbose = false;
  Names planted;  // numbers of faults in planted.py
};

Names words_of(const std::string& list) {
  Names words;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

Arguments arguments_of(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] { return std::string(i + 1 < count ? words[++i] : ""); };
    if (word == "--count") arguments.count = std::stoll(value());
    if (word == "--seed") arguments.seed = std::stoull(value());
    if (word == "--ways") arguments.ways = value();
    if (word == "--only") arguments.only = words_of(value());
    if (word == "--found") arguments.found = value();
    if (word == "--replay") arguments.replay = value();
    if (word == "--rotate") arguments.rotate = true;
    if (word == "--first") arguments.first = true;
    if (word == "--planted") arguments.planted = words_of(value());
    if (word == "--verbose") arguments.verbose = true;
  }
  return arguments;
}

// Weights of com.microsoft.NhwcConv have a layout of the whole file. The generator goes node by
// node and does not know it.
bool reads_layouts_as_one(const DrawnGraph& graph) {
  return std::ranges::any_of(
      graph.nodes, [](const DrawnNode& node) { return node.op->name.starts_with("Nhwc"); });
}

Model written(const DrawnGraph& graph, uint64_t seed) {
  Model model{model_of(graph).SerializeAsString(), graph.batch, seed, {}};
  if (!graph.has_random() && !reads_layouts_as_one(graph))
    model.loss = graph.tensor(graph.loss).values.at(0);
  return model;
}

struct Totals {
  int64_t graphs = 0, trials = 0, nodes = 0, wrong = 0, unsteady = 0, refused = 0, absent = 0;

  int64_t defects() const { return wrong + refused; }
};

// Totals that processes share.
Totals* shared_totals() {
  void* const memory =
      mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Totals;
}

bool forks(const Way& way) { return way.ranks > 1; }

bool is_defect(Verdict verdict) {
  return verdict == Verdict::kWrong || verdict == Verdict::kRefused;
}

class Campaign {
 public:
  explicit Campaign(const Arguments& arguments)
      : arguments_(arguments), registry_(make_registry()) {
    for (const Way& way : all_ways()) {
      const Names wanted = words_of(arguments.ways);
      if (arguments.ways == "all" || std::ranges::count(wanted, way.name) > 0) ways_.push_back(way);
    }
  }

  int run() {
    const bool both = !arguments_.replay.empty() ||  // files have different ways
                      (std::ranges::any_of(ways_, forks) && !std::ranges::all_of(ways_, forks));
    std::fflush(nullptr);
    const pid_t beside = both ? fork() : -1;
    forking_ = !both ? std::ranges::any_of(ways_, forks) : beside == 0;
    separate_ = both;
    draw_all();
    if (!arguments_.replay.empty()) replay();
    if (beside == 0) {
      *ranks_totals_ = totals_;
      std::fflush(nullptr);
      _exit(0);
    }
    const bool ended = !both || add_other(beside);
    if (totals_.absent > 0) {
      std::printf("%lld trials have an operator without a kernel of the device\n",
                  static_cast<long long>(totals_.absent));
    }
    std::printf(
        "%lld graphs, %lld nodes, %lld trials: %lld wrong, %lld refused, %lld without "
        "digits\n",
        static_cast<long long>(totals_.graphs), static_cast<long long>(totals_.nodes),
        static_cast<long long>(totals_.trials), static_cast<long long>(totals_.wrong),
        static_cast<long long>(totals_.refused), static_cast<long long>(totals_.unsteady));
    return totals_.defects() > 0 || !ended ? 1 : 0;
  }

 private:
  void draw_all() {
    for (int64_t i = 0; i < arguments_.count; ++i) {
      if (arguments_.first && totals_.defects() > 0) return;
      if (!arguments_.planted.empty() && found_.size() == arguments_.planted.size()) return;
      one(arguments_.seed + static_cast<uint64_t>(i));
    }
  }

  // Waits for the process with the multi-rank ways. Returns false if it was killed.
  bool add_other(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    const Totals& other = *ranks_totals_;
    if (arguments_.rotate || std::ranges::all_of(ways_, forks)) {  // else both drew the same graphs
      totals_.graphs += other.graphs;
      totals_.nodes += other.nodes;
    }
    totals_.trials += other.trials;
    totals_.wrong += other.wrong;
    totals_.refused += other.refused;
    totals_.unsteady += other.unsteady;
    totals_.absent += other.absent;
    const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ended) std::printf("the process of the ways with ranks ended with %d\n", status);
    return ended;
  }

  // The ways that this process tries for a graph.
  std::vector<Way> ways_for(uint64_t seed) const {
    std::vector<Way> ways = ways_;
    if (arguments_.rotate) ways = {ways_[seed % ways_.size()]};
    if (separate_) std::erase_if(ways, [&](const Way& way) { return forks(way) != forking_; });
    return ways;
  }

  void one(uint64_t seed) {
    const std::vector<Way> ways = ways_for(seed);
    if (ways.empty()) return;
    DrawnGraph graph;
    try {
      graph = drawn(registry_, {.seed = seed, .only = arguments_.only});
    } catch (const Refused& refused) {
      if (arguments_.verbose)
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), refused.what());
      return;
    }
    const onnx::ModelProto model = model_of(graph);
    try {
      onnx::checker::check_model(model);
    } catch (const std::exception& error) {
      std::printf("seed %llu: the generator made no ONNX: %s\n",
                  static_cast<unsigned long long>(seed), error.what());
      ++totals_.refused;
      return;
    }
    ++totals_.graphs;
    totals_.nodes += static_cast<int64_t>(graph.nodes.size());
    if (arguments_.verbose)
      std::printf("seed %llu: %zu nodes\n", static_cast<unsigned long long>(seed),
                  graph.nodes.size());
    Trial trial(registry_, written(graph, seed));
    if (!arguments_.planted.empty()) return find_planted(trial, seed, ways);
    for (const Way& way : ways) {
      const Judgement judged = trial.in(way);
      count(judged);
      if (!is_defect(judged.verdict)) continue;
      std::printf("seed %llu, %s: %s\n", static_cast<unsigned long long>(seed), way.name.c_str(),
                  judged.line.c_str());
      if (!arguments_.found.empty() && !arguments_.first) keep(graph, seed, way, judged);
      std::fflush(stdout);
    }
  }

  // Trains with each planted fault that no graph has found yet. A graph that is wrong without a
  // fault proves nothing.
  void find_planted(Trial& trial, uint64_t seed, const std::vector<Way>& ways) {
    for (const Way& way : ways) {
      unsetenv("OFSDP_PLANTED");
      const Judgement clean = trial.in(way);
      count(clean);
      if (clean.verdict != Verdict::kRight) continue;
      for (const std::string& number : arguments_.planted) {
        if (found_.contains(number)) continue;
        setenv("OFSDP_PLANTED", number.c_str(), 1);
        std::printf("trying %s: seed %llu, %s\n", number.c_str(),
                    static_cast<unsigned long long>(seed), way.name.c_str());
        const Judgement judged = trial.in(way);
        if (!is_defect(judged.verdict)) continue;
        found_.insert(number);
        std::printf("planted %s: %lld graphs, seed %llu, %s: %s\n", number.c_str(),
                    static_cast<long long>(totals_.graphs), static_cast<unsigned long long>(seed),
                    way.name.c_str(), judged.line.c_str());
      }
    }
    unsetenv("OFSDP_PLANTED");
  }

  void count(const Judgement& judged) {
    ++totals_.trials;
    totals_.wrong += judged.verdict == Verdict::kWrong;
    totals_.refused += judged.verdict == Verdict::kRefused;
    totals_.unsteady += judged.verdict == Verdict::kUnsteady;
    totals_.absent += judged.verdict == Verdict::kAbsent;
  }

  void keep(const DrawnGraph& graph, uint64_t seed, const Way& way, const Judgement& judged) {
    const auto fails = [&](const DrawnGraph& smaller) {
      Trial trial(registry_, written(smaller, seed));
      const Judgement again = trial.in(way);
      const bool alike = again.line.substr(0, 4) == judged.line.substr(0, 4);
      return again.verdict == judged.verdict && (again.verdict == Verdict::kWrong || alike);
    };
    const DrawnGraph smallest = shrunk(graph, fails);
    const std::string path =
        arguments_.found + "/seed" + std::to_string(seed) + "_" + way.name + ".txt";
    std::filesystem::create_directories(arguments_.found);
    std::ofstream(path) << text_of(smallest, seed, way.name);
    std::printf("  %s: %zu nodes\n", path.c_str(), smallest.nodes.size());
  }

  void replay() {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(arguments_.replay)) {
      if (entry.path().extension() == ".txt") paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
    for (const auto& path : paths) {
      std::ifstream file(path);
      std::stringstream text;
      text << file.rdbuf();
      const FoundGraph found = parsed(text.str());
      totals_.graphs += !forking_;
      Trial trial(registry_, found.model);
      for (const Way& way : all_ways()) {
        if (way.name != found.way && way.name != "plain") continue;
        if (forks(way) != forking_) continue;
        const Judgement judged = trial.in(way);
        count(judged);
        if (!is_defect(judged.verdict)) continue;
        std::printf("%s, %s: %s\n", path.filename().c_str(), way.name.c_str(), judged.line.c_str());
      }
    }
  }

  const Arguments& arguments_;
  Registry registry_;
  std::vector<Way> ways_;
  bool separate_ = false;  // this is one of two processes,
  bool forking_ = false;   // the one for the ways with ranks
  Totals totals_;
  Totals* const ranks_totals_ = shared_totals();
  std::set<std::string> found_;  // planted faults
};

}  // namespace
}  // namespace ofsdp::graphs

int main(int count, char** words) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ofsdp::kernels::set_pool_threads(1);  // a process that forks must have no other threads
  const auto arguments = ofsdp::graphs::arguments_of(count, words);
  return ofsdp::graphs::Campaign(arguments).run();
}
