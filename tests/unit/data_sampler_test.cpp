#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "runtime/data/sampler.h"
#include "runtime/options.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_sampler_test {

using testing_data::expect_input_error;
using Samples = std::vector<int64_t>;

Sampler make(SamplerOptions options, int ranks = 1, int rank = 0) {
  options.ranks = ranks;
  options.rank = rank;
  Result<Sampler> sampler = Sampler::make(options);
  EXPECT_TRUE(sampler.ok());
  return *std::move(sampler);
}

Samples micro_batch(const Sampler& sampler, int64_t update, int64_t micro) {
  Samples samples(static_cast<size_t>(sampler.options().batch_size));
  samples.resize(static_cast<size_t>(sampler.micro_batch(update, micro, samples)));
  return samples;
}

Samples share(const Sampler& sampler, int64_t update) {
  Samples all;
  for (int64_t micro = 0; micro < sampler.options().grad_accum; ++micro) {
    const Samples part = micro_batch(sampler, update, micro);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// The global batch in order, joined again from the ranks' shares.
Samples global_batch(const SamplerOptions& options, int ranks, int64_t update) {
  std::map<int64_t, int64_t> at;
  for (int rank = 0; rank < ranks; ++rank) {
    const Samples mine = share(make(options, ranks, rank), update);
    for (size_t i = 0; i < mine.size(); ++i) at[static_cast<int64_t>(i) * ranks + rank] = mine[i];
  }
  Samples all;
  for (const auto& [position, sample] : at) all.push_back(sample);
  return all;
}

TEST(Permutation, IsOneForEverySize) {
  for (int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 100, 255, 256, 257, 60000}) {
    const Permutation order(size, 1, 0);
    std::vector<bool> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = order.at(i);
      ASSERT_TRUE(at >= 0 && at < size) << size;
      ASSERT_FALSE(seen[static_cast<size_t>(at)]) << size;
      seen[static_cast<size_t>(at)] = true;
    }
  }
}

TEST(Permutation, EveryOrderOfFourComesUpAboutEquallyOften) {
  std::map<Samples, int> counts;
  for (uint64_t seed = 0; seed < 24000; ++seed) {
    const Permutation order(4, seed, 0);
    ++counts[{order.at(0), order.at(1), order.at(2), order.at(3)}];
  }
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 160);  // 5 sigma
}

// The first tenth of the samples is spread evenly: about a tenth of it in every tenth.
TEST(Permutation, Spreads) {
  const Permutation order(60000, 3, 5);
  std::vector<int> tenths(10);
  for (int64_t i = 0; i < 6000; ++i) ++tenths[static_cast<size_t>(order.at(i) / 6000)];
  for (int count : tenths) EXPECT_NEAR(count, 600, 120);
}

TEST(Sampler, NoShuffleDealsRowsAsTheCasesDo) {
  SamplerOptions options;
  options.samples = 48;
  options.shuffle = false;
  options.batch_size = 3;
  options.grad_accum = 2;
  const Sampler sampler = make(options, 2, 1);
  EXPECT_EQ(sampler.updates_per_epoch(), 4);
  EXPECT_EQ(micro_batch(sampler, 0, 0), (Samples{1, 3, 5}));
  EXPECT_EQ(micro_batch(sampler, 0, 1), (Samples{7, 9, 11}));
  EXPECT_EQ(micro_batch(sampler, 3, 1), (Samples{43, 45, 47}));
  EXPECT_EQ(micro_batch(sampler, 4, 0), (Samples{1, 3, 5}));  // the next epoch
  EXPECT_EQ(sampler.epoch_of(3), 0);
  EXPECT_EQ(sampler.epoch_of(4), 1);
  EXPECT_EQ(sampler.micro_batch_sizes(), (Samples{3}));
}

SamplerOptions three_slices(int64_t grad_accum) {
  SamplerOptions options{{.shuffle = false}};
  options.samples = 19;
  options.batch_size = 4;
  options.grad_accum = grad_accum;
  options.slices = 3;
  options.sliced_samples = 10;
  return options;
}

// Rank and micro-batch change, a slice's samples do not; a fourth micro-batch has nothing.
TEST(Sampler, SlicesAreTheSameOnAnyNumberOfRanks) {
  const Samples slices[] = {{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}};
  const Samples short_ones[] = {{10, 13, 16}, {11, 14, 17}, {12, 15, 18}};
  for (const int ranks : {1, 2, 3, 4}) {
    const int64_t accum = (3 + ranks - 1) / ranks;
    for (int64_t j = 0; j < accum * ranks; ++j) {
      const Sampler sampler = make(three_slices(accum), ranks, static_cast<int>(j % ranks));
      EXPECT_EQ(sampler.updates_per_epoch(), 2);
      EXPECT_EQ(micro_batch(sampler, 0, j / ranks), j < 3 ? slices[j] : Samples{});
      EXPECT_EQ(micro_batch(sampler, 1, j / ranks), j < 3 ? short_ones[j] : Samples{});
    }
    EXPECT_EQ(make(three_slices(accum), ranks).micro_batch_sizes_of_all_ranks().front(), 4);
  }
}

TEST(Sampler, AnyNumberOfRanksSharesTheSameGlobalBatches) {
  SamplerOptions one;
  one.samples = 100;
  one.seed = 7;
  one.batch_size = 30;
  for (int64_t update = 0; update < 12; ++update) {  // three epochs with batches 30, 30, 30, 10
    const Samples expected = global_batch(one, 1, update);
    EXPECT_EQ(expected.size(), update % 4 == 3 ? 10u : 30u);
    for (const auto& [ranks, batch, accum] :
         {std::tuple{2, 15, 1}, {2, 5, 3}, {3, 10, 1}, {5, 6, 1}, {5, 2, 3}}) {
      SamplerOptions options = one;
      options.batch_size = batch;
      options.grad_accum = accum;
      EXPECT_EQ(global_batch(options, ranks, update), expected) << ranks << " " << update;
      EXPECT_EQ(make(options, ranks).global_size(update), static_cast<int64_t>(expected.size()));
    }
  }
}

TEST(Sampler, AnEpochIsEverySampleOnceAndEpochsDiffer) {
  SamplerOptions options;
  options.samples = 100;
  options.batch_size = 7;
  std::set<Samples> orders;
  for (uint64_t seed : {0, 1}) {
    options.seed = seed;
    const Sampler sampler = make(options);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      Samples order;
      for (int64_t i = 0; i < sampler.updates_per_epoch(); ++i) {
        const Samples part = share(sampler, epoch * sampler.updates_per_epoch() + i);
        order.insert(order.end(), part.begin(), part.end());
      }
      EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 100u);
      EXPECT_EQ(order.size(), 100u);
      orders.insert(order);
    }
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST(Sampler, ShortLastBatchLeavesSomeRanksLessOrNothing) {
  SamplerOptions options;
  options.samples = 26;  // 12, 12, 2
  options.shuffle = false;
  options.batch_size = 2;
  options.grad_accum = 2;
  EXPECT_EQ(make(options, 3).updates_per_epoch(), 3);
  EXPECT_EQ(micro_batch(make(options, 3, 0), 2, 0), (Samples{24}));
  EXPECT_EQ(micro_batch(make(options, 3, 1), 2, 0), (Samples{25}));
  EXPECT_EQ(micro_batch(make(options, 3, 2), 2, 0), Samples{});
  EXPECT_EQ(micro_batch(make(options, 3, 0), 2, 1), Samples{});
  EXPECT_EQ(make(options, 3, 0).micro_batch_sizes(), (Samples{2, 1, 0}));
  EXPECT_EQ(make(options, 3, 2).micro_batch_sizes(), (Samples{2, 0}));
  EXPECT_EQ(make(options, 3, 2).micro_batch_sizes_of_all_ranks(), (Samples{2, 1, 0}));
  EXPECT_EQ(make(options, 3).global_size(2), 2);
}

TEST(Sampler, RanksAreAlikeWhereAllHaveAsManySamples) {
  for (int64_t samples = 1; samples < 40; ++samples) {
    std::vector<Sampler> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      SamplerOptions options;
      options.samples = samples;
      options.batch_size = 2;
      options.grad_accum = 2;
      options.ranks = 3;
      options.rank = rank;
      ranks.push_back(*Sampler::make(options));
    }
    for (int64_t update = 0; update < 2 * ranks[0].updates_per_epoch(); ++update) {
      for (const int64_t micro : {0, 1}) {
        const int64_t size = ranks[0].micro_size(update, micro);
        const bool same = ranks[1].micro_size(update, micro) == size &&
                          ranks[2].micro_size(update, micro) == size;
        for (const Sampler& sampler : ranks) EXPECT_EQ(sampler.alike(update, micro), same);
      }
    }
  }
}

// Parts of a micro-batch: each rank's share of `samples`, in an epoch without shuffling.
std::vector<Sampler> parted(const Samples& parts, int64_t samples, int64_t accum) {
  std::vector<Sampler> ranks;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    SamplerOptions options{{.shuffle = false}};
    options.samples = samples;
    options.batch_size = std::ranges::max(parts);
    options.parts = parts;
    options.grad_accum = accum;
    ranks.push_back(make(options, static_cast<int>(parts.size()), static_cast<int>(rank)));
  }
  return ranks;
}

TEST(Sampler, PartsAreInProportionInShortBatchesToo) {
  for (const Samples& parts : {Samples{5, 3}, {1, 20, 3}, {8, 2, 1, 5}, {1, 7}, {4, 4, 1}}) {
    const int64_t slots = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    for (int64_t samples = 1; samples <= slots; ++samples) {
      const auto ranks = parted(parts, samples, 1);
      for (size_t r = 0; r < parts.size(); ++r) {
        const double share = static_cast<double>(samples * parts[r]) / static_cast<double>(slots);
        EXPECT_NEAR(static_cast<double>(ranks[r].micro_size(0, 0)), share, 1.0);
        EXPECT_LE(ranks[r].micro_size(0, 0), parts[r]);
        EXPECT_LE(ranks[r].micro_size(0, 0), ranks[r].most_in_epoch());
      }
    }
  }
}

TEST(Sampler, RanksWithPartsHaveEverySampleOnceBatchByBatch) {
  const Samples parts{5, 1, 3};
  for (const int64_t accum : {1, 2, 3}) {
    for (int64_t samples = 1; samples < 70; ++samples) {
      const auto ranks = parted(parts, samples, accum);
      int64_t begin = 0;
      for (int64_t update = 0; update < ranks[0].updates_per_epoch(); ++update) {
        for (int64_t micro = 0; micro < accum; ++micro) {
          Samples all;
          std::set<int64_t> sizes;
          for (const Sampler& sampler : ranks) {
            const Samples mine = micro_batch(sampler, update, micro);
            all.insert(all.end(), mine.begin(), mine.end());
            sizes.insert(std::ssize(mine));
            const Samples known = sampler.micro_batch_sizes();
            EXPECT_EQ(std::ranges::count(known, std::ssize(mine)), 1);
          }
          for (const Sampler& sampler : ranks) {
            EXPECT_EQ(sampler.alike(update, micro), sizes.size() == 1);
          }
          std::ranges::sort(all);
          Samples expected(all.size());
          std::iota(expected.begin(), expected.end(), begin);
          EXPECT_EQ(all, expected);
          begin += std::ssize(all);
        }
        EXPECT_EQ(begin, std::min(samples, (update + 1) * 9 * accum));
      }
      EXPECT_EQ(begin, samples);
    }
  }
}

TEST(Sampler, EqualPartsAreDealtAsWithoutParts) {
  for (const int64_t accum : {1, 3}) {
    for (int64_t samples = 1; samples < 40; ++samples) {
      SamplerOptions options;
      options.samples = samples;
      options.batch_size = 4;
      options.grad_accum = accum;
      SamplerOptions with = options;
      with.parts = {4, 4, 4};
      for (int rank = 0; rank < 3; ++rank) {
        for (int64_t update = 0; update < 4; ++update) {
          for (int64_t micro = 0; micro < accum; ++micro) {
            EXPECT_EQ(micro_batch(make(with, 3, rank), update, micro),
                      micro_batch(make(options, 3, rank), update, micro));
          }
        }
      }
    }
  }
}

TEST(Sampler, WeightsMakePartsOfWholeSamples) {
  const auto parts = [](const std::vector<double>& weights, int64_t batch) {
    const BatchSizes sizes{.batch_size = batch, .weights = weights};
    const auto made = batch_parts(sizes, static_cast<int>(weights.size()));
    EXPECT_TRUE(made.ok());
    return *made;
  };
  EXPECT_EQ(parts({2, 1}, 8), (Samples{11, 5}));
  EXPECT_EQ(parts({3, 1, 2}, 4), (Samples{6, 2, 4}));
  EXPECT_EQ(parts({1e308, 1e308, 5e307}, 5), (Samples{6, 6, 3}));
  EXPECT_EQ(parts({0.3, 0.3, 0.3}, 5), Samples{});  // equal
  EXPECT_EQ(parts({1, 1.001}, 4), Samples{});       // to one sample
  const BatchSizes lone{.batch_size = 1, .weights = {9, 1}};
  expect_input_error(batch_parts(lone, 2), {"--batch-weights", "rank 1", "2 samples"});
  expect_input_error(batch_parts(lone, 3), {"expected 3 weights", "found 2"});
}

TEST(Sampler, SizesAreExactlyThoseThatOccur) {
  for (int64_t samples : {1, 5, 12, 13, 23, 24, 25, 100}) {
    for (bool drop : {false, true}) {
      for (int rank = 0; rank < 3; ++rank) {
        SamplerOptions options;
        options.samples = samples;
        options.drop_last = drop && samples >= 12;
        options.batch_size = 2;
        options.grad_accum = 2;
        const Sampler sampler = make(options, 3, rank);
        std::set<int64_t, std::greater<>> seen;
        for (int64_t update = 0; update < sampler.updates_per_epoch(); ++update) {
          for (int64_t micro : {0, 1}) seen.insert(sampler.micro_size(update, micro));
        }
        EXPECT_EQ(sampler.micro_batch_sizes(), Samples(seen.begin(), seen.end()));
      }
    }
  }
}

TEST(Sampler, DropLastSkipsTheShortBatch) {
  SamplerOptions options;
  options.samples = 26;
  options.drop_last = true;
  options.batch_size = 12;
  const Sampler sampler = make(options);
  EXPECT_EQ(sampler.updates_per_epoch(), 2);
  EXPECT_EQ(sampler.epoch_of(2), 1);
  EXPECT_EQ(sampler.micro_batch_sizes(), Samples{12});
  options.samples = 11;
  expect_input_error(Sampler::make(options), {"--drop-last", "12", "11"});
  options.samples = 0;
  expect_input_error(Sampler::make(options), {"at least 1 sample", "found 0"});
}

TEST(Sampler, EvaluationIsEverySampleInOrder) {
  Samples first, second;
  for (int64_t update = 0; update < 3; ++update) {
    const Samples a = share(*Sampler::make_evaluation(10, 2, 2, 0), update);
    const Samples b = share(*Sampler::make_evaluation(10, 2, 2, 1), update);
    first.insert(first.end(), a.begin(), a.end());
    second.insert(second.end(), b.begin(), b.end());
  }
  EXPECT_EQ(Sampler::make_evaluation(10, 2, 2, 0)->updates_per_epoch(), 3);
  EXPECT_EQ(first, (Samples{0, 2, 4, 6, 8}));
  EXPECT_EQ(second, (Samples{1, 3, 5, 7, 9}));
}

TEST(Sampler, EndlessDataIsOneEpochInOrder) {
  SamplerOptions options;
  options.samples = kEndless;
  options.batch_size = 2;
  const Sampler sampler = make(options, 2, 1);
  EXPECT_EQ(micro_batch(sampler, 0, 0), (Samples{1, 3}));
  EXPECT_EQ(micro_batch(sampler, 1000000, 0), (Samples{4000001, 4000003}));
  EXPECT_EQ(sampler.epoch_of(1000000), 0);
  EXPECT_EQ(sampler.micro_batch_sizes(), Samples{2});
}

}  // namespace data_sampler_test
}  // namespace ofsdp
