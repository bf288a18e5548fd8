// AlgorithmRate: the learning rate and the count of updates in an algorithm graph: initializers T
// and, without a schedule, R; else nodes on T with the formulas of runtime/engine/lr_schedule.h. Computed
// in double, given to the update as float32.
//
// of_rate, of_count: a scalar made once of the exact rate, or of T + 1. Ownership: borrows options
// and builder. Threads: one. Errors: kInput from check_rate.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "importer/dialects/training_info/algorithm_builder.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// Whether a graph can say the schedule.
Status check_rate(const Options& options);

class AlgorithmRate {
 public:
  using Make = std::function<std::string(const std::string& exact)>;

  AlgorithmRate(const Options& options, AlgorithmBuilder& builder)
      : options_(options), b_(builder) {}

  std::string rate();              // float32
  std::string count();             // int64, from 0
  std::string next_count();        // from 1
  std::string exact_next_count();  // the same in double
  std::string of_rate(const std::string& key, const Make& make) {
    return once(key, [&] { return make(exact_rate()); });
  }
  std::string of_count(const std::string& key, const Make& make) {
    return once(key, [&] { return make(exact_next_count()); });
  }
  void finish();  // T takes its next value, where anything reads it

 private:
  std::string once(const std::string& key, const std::function<std::string()>& make);
  std::string number(double value) { return b_.scalar("number", DType::kFloat64, value); }
  std::string exact_rate();
  std::string factor();
  std::string exact_count();
  std::string decay(const std::string& progress);
  std::string progress();

  const Options& options_;
  AlgorithmBuilder& b_;
  std::map<std::string, std::string> made_;  // scalars in float32, by key
  std::string count_, next_count_, exact_count_, exact_next_count_, exact_rate_, rate_;
};

}  // namespace ofsdp::runtime
