// Every launcher's environment as it sets it, and the message when one contradicts itself.
#include "fsdp/comm/rank_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace rank_identity_test {

using Variables = std::map<std::string, std::string>;
using testing::HasSubstr;

Result<std::optional<RankIdentity>> identity_of(const Variables& variables) {
  return rank_identity_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_identity(const Variables& variables, const RankIdentity& expected) {
  auto found = identity_of(variables);
  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_TRUE(found->has_value());
  const RankIdentity& identity = **found;
  EXPECT_EQ(identity.rank, expected.rank);
  EXPECT_EQ(identity.world, expected.world);
  EXPECT_EQ(identity.local_rank, expected.local_rank);
  EXPECT_EQ(identity.rendezvous, expected.rendezvous);
  EXPECT_EQ(identity.started_by, expected.started_by);
}

void expect_error(const Variables& variables, const std::vector<std::string>& parts) {
  auto found = identity_of(variables);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().kind(), ErrorKind::kInput);
  for (const std::string& part : parts) EXPECT_THAT(found.error().message(), HasSubstr(part));
}

const Variables kTorch = {{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "localhost"},
                          {"MASTER_PORT", "29500"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(RankIdentity, NobodySaid) {
  for (const Variables& variables :
       {Variables{}, Variables{{"RANK", ""}},
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}}) {
    auto found = identity_of(variables);
    ASSERT_TRUE(found.ok());
    EXPECT_FALSE(found->has_value());
  }
}

TEST(RankIdentity, Torchrun) {
  expect_identity(kTorch, {1, 4, 1, "localhost:29500", "torchrun"});
  expect_identity(with(kTorch, {{"LOCAL_WORLD_SIZE", "4"},
                                {"GROUP_WORLD_SIZE", "1"},
                                {"TORCHELASTIC_RUN_ID", "none"},
                                {"TORCHELASTIC_RESTART_COUNT", "0"}}),
                  {1, 4, 1, "localhost:29500/none/0", "torchrun"});
  expect_identity({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {0, 1, 0, "", "torchrun"});
}

TEST(RankIdentity, OurOwnLauncherBeatsWhatStartedIt) {
  expect_identity(with(kTorch, {{"OFSDP_RENDEZVOUS", "fsdp-run-12-ab"},
                                {"OMPI_COMM_WORLD_RANK", "0"},
                                {"OMPI_COMM_WORLD_SIZE", "2"}}),
                  {1, 4, 1, "fsdp-run-12-ab", "fsdp-run"});
}

TEST(RankIdentity, OpenMpi) {
  const Variables ompi = {{"OMPI_COMM_WORLD_RANK", "2"},
                          {"OMPI_COMM_WORLD_SIZE", "3"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                          {"PMIX_NAMESPACE", "1234"}};
  expect_identity(ompi, {2, 3, 2, "Open MPI 1234", "Open MPI"});
  auto found = identity_of(
      with(ompi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_TRUE((*found)->several_hosts());
  EXPECT_EQ((*found)->local_world, 2);
  EXPECT_EQ((*found)->node_rank, -1);
  EXPECT_EQ((*found)->master_address, "");
}

TEST(RankIdentity, Mpich) {
  expect_identity({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "j7"}},
                  {1, 2, 1, "MPICH j7", "MPICH"});
  auto found = identity_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});  // named by its launcher
  ASSERT_TRUE(found.ok());
  EXPECT_THAT((*found)->rendezvous, HasSubstr("MPICH process "));
}

TEST(RankIdentity, Slurm) {
  const Variables slurm = {{"SLURM_PROCID", "3"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_LOCALID", "3"},
                           {"SLURM_JOB_ID", "77"},
                           {"SLURM_STEP_ID", "2"}};
  expect_identity(slurm, {3, 4, 3, "Slurm 77.2", "Slurm"});
  auto found = identity_of(with(slurm, {{"SLURM_STEP_NUM_NODES", "2"},
                                        {"SLURM_NODEID", "1"},
                                        {"SLURM_LOCALID", "1"},
                                        {"SLURM_STEP_NODELIST", "node[003-004],login"}}));
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_TRUE((*found)->several_hosts());
  EXPECT_EQ((*found)->node_rank, 1);
  EXPECT_EQ((*found)->ranks_here(), 2);
  EXPECT_EQ((*found)->master_address, "node003");
  EXPECT_EQ((*found)->master_port, 20772);
}

TEST(RankIdentity, WrongValuesNameTheirVariable) {
  expect_error(with(kTorch, {{"RANK", "one"}}), {"RANK", "whole number of 0 or more", "'one'"});
  expect_error(with(kTorch, {{"RANK", "4"}}), {"RANK=4", "0 to 3", "WORLD_SIZE is 4"});
  expect_error(with(kTorch, {{"RANK", "-1"}}), {"RANK", "'-1'"});
  expect_error(with(kTorch, {{"RANK", "1 "}}), {"RANK", "'1 '"});
  expect_error(with(kTorch, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE", "1 or more", "'0'"});
  expect_error(with(kTorch, {{"WORLD_SIZE", ""}}), {"WORLD_SIZE is not set", "RANK=1"});
  expect_error(with(kTorch, {{"RANK", ""}}), {"RANK is not set", "WORLD_SIZE=4"});
  expect_error(with(kTorch, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK", "0 to 3", "'4'"});
  expect_error(with(kTorch, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT", "1 to 65535", "'70000'"});
  expect_error(with(kTorch, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR is not set"});
  expect_error(with(kTorch, {{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE=5", "at most"});
  expect_error(with(kTorch, {{"GROUP_WORLD_SIZE", "5"}}), {"GROUP_WORLD_SIZE", "1 to 4", "'5'"});
  expect_error(with(kTorch, {{"GROUP_WORLD_SIZE", "2"}, {"GROUP_RANK", "2"}}),
               {"GROUP_RANK", "0 to 1", "'2'"});
  expect_error(with(kTorch, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
               {"LOCAL_RANK", "0 to 1", "'2'"});
}

TEST(RankIdentity, TorchrunOnSeveralHosts) {
  const Variables two = with(kTorch, {{"RANK", "3"},
                                      {"LOCAL_WORLD_SIZE", "2"},
                                      {"GROUP_WORLD_SIZE", "2"},
                                      {"GROUP_RANK", "1"},
                                      {"TORCHELASTIC_RUN_ID", "job"}});
  expect_identity(two, {3, 4, 1, "localhost:29500/job", "torchrun"});
  auto found = identity_of(two);
  EXPECT_TRUE((*found)->several_hosts());
  EXPECT_EQ((*found)->node_rank, 1);
  EXPECT_EQ((*found)->nodes, 2);
  EXPECT_EQ((*found)->local_world, 2);
  EXPECT_EQ((*found)->master_address, "localhost");
  EXPECT_EQ((*found)->master_port, 29500);
  EXPECT_EQ((*found)->run_id, "/job");
  // torchrun's agent keeps its store at the port.
  EXPECT_EQ((*identity_of(with(two, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})))->master_port,
            29501);
}

TEST(RankIdentity, TwoLaunchersMustAgreeUnlessOneHasOneRank) {
  const Variables ompi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  expect_error(with(kTorch, ompi), {"torchrun says rank 1 of 4", "Open MPI says rank 0 of 2"});
  expect_identity(with(kTorch, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
                  {1, 4, 1, "localhost:29500", "torchrun"});
  expect_identity(with({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "5"}}, ompi),
                  {0, 2, 0, "Open MPI 5", "Open MPI"});
}

}  // namespace rank_identity_test
}  // namespace ofsdp
