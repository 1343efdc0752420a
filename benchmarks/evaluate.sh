#!/bin/sh
# The runs behind docs/results.md, and the paper's tables:  benchmarks/evaluate.sh MODEL LONGBENCH_FOLDER OUT [WORKERS]
# Stopped and started again, it goes on where it was. The scores of every row go to benchmarks/results.
set -eu
model=$1 data=$2 out=$3 workers=${4:-1}
pot="--pot-size 4096 --workers $workers"
half="$pot --distill-to 2048"

keep() {
    python "$(dirname "$0")/keep_scores.py" "$1" "$2"
}

infinipot eval longbench "$model" --data "$data" --out "$out/table1" $pot --protocol paper
keep "$out/table1/longbench.jsonl" longbench
infinipot eval longbench "$model" --data "$data" --out "$out/longbench" $half --against truncate --policy \
full,truncate,streaming,h2o,tova,sirllm,snapkv,snapkv:prefill=whole,self_extend,keydiff,kvzip,\
infinipot,infinipot:novelty=0:pool=0,infinipot:novelty=0.25:pool=0,infinipot:preset=paper,infinipot:score_memory=once,\
infinipot:catalyst=general,infinipot:novelty=0:pool=0:catalyst=general,infinipot:preset=paper:catalyst=general,infinipot:preset=facts:distill_to=3072
keep "$out/longbench/longbench.jsonl" longbench
infinipot eval longbench "$model" --data "$data" --out "$out/longbench" $pot --against truncate --policy truncate,infinipot,infinipot:catalyst=general
keep "$out/longbench/longbench.jsonl" longbench

for haystack in filler essays; do
    infinipot needle "$model" --haystack $haystack --lengths 4k,16k,64k,128k --trials 8 --out "$out/needle-$haystack" $half --policy \
truncate,streaming,sliding_window,random,h2o,tova,sirllm,snapkv,keydiff,infinipot,infinipot:preset=paper,infinipot:pool=13,\
infinipot:preset=paper:catalyst=general,infinipot:preset=facts:distill_to=3072
    keep "$out/needle-$haystack/needle.jsonl" needle
done
infinipot needle "$model" --lengths 1m --trials 8 --out "$out/needle-essays" $half --policy \
infinipot:pool=13,infinipot:pool=13:score_memory=once,infinipot:preset=facts:distill_to=3072
keep "$out/needle-essays/needle.jsonl" needle

for study in catalyst novelty memory; do
    infinipot study $study "$model" --data "$data" --limit 8 --out "$out/$study" $pot
    keep "$out/$study/longbench.jsonl" "study_$study"
done
infinipot study kept "$model" --data "$data" --limit 8 --out "$out/kept" $pot
keep "$out/kept/kept.jsonl" study_kept
infinipot study ablation "$model" --lengths 4k,16k --trials 8 --out "$out/ablation" $pot
keep "$out/ablation/needle.jsonl" study_ablation
infinipot study hops "$model" --lengths 16k,64k --trials 8 --out "$out/hops" $pot
keep "$out/hops/hops.jsonl" hops
