#!/bin/sh
# The runs behind docs/results.md:  benchmarks/evaluate.sh MODEL LONGBENCH_FOLDER OUT [WORKERS]
# Stopped and started again, it goes on where it was.
set -eu
model=$1 data=$2 out=$3 workers=${4:-1}
pot="--pot-size 4096 --distill-to 2048 --workers $workers"

infinipot eval longbench "$model" --data "$data" --out "$out/longbench" $pot --against truncate --policy \
full,truncate,streaming,h2o,tova,sirllm,snapkv,keydiff,\
infinipot,infinipot:novelty=0:pool=0,infinipot:novelty=0.25:pool=0,infinipot:preset=paper,infinipot:score_memory=once,\
infinipot:catalyst=general,infinipot:novelty=0:pool=0:catalyst=general,infinipot:preset=paper:catalyst=general,infinipot:preset=facts:distill_to=3072

for haystack in filler essays; do
    infinipot needle "$model" --haystack $haystack --lengths 4k,16k,64k,128k --trials 8 --out "$out/needle-$haystack" $pot --policy \
truncate,streaming,h2o,tova,sirllm,snapkv,keydiff,infinipot,infinipot:preset=paper,infinipot:pool=13,\
infinipot:preset=paper:catalyst=general,infinipot:preset=facts:distill_to=3072
done
infinipot needle "$model" --lengths 1m --trials 8 --out "$out/needle-essays" $pot --policy \
infinipot:pool=13,infinipot:pool=13:score_memory=once,infinipot:preset=facts:distill_to=3072

for study in catalyst novelty memory kept; do
    infinipot study $study "$model" --data "$data" --limit 8 --out "$out/$study" --workers "$workers"
done
infinipot study hops "$model" --lengths 16k,64k --trials 8 --out "$out/hops" $pot
