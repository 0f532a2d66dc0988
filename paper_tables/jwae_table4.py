"""`jwae` Table 4: VSE++ with a joint Wasserstein autoencoder or a variational autoencoder, on COCO.

Needs the data of pmrl_table1 and shares runs with jwae_table3.

    python -m paper_tables.jwae_table4 --data_path D
"""
from paper_tables.common import Row, Run, Table, main, recalls
from paper_tables.jwae_table3 import RATE, RUNS
from paper_tables.pmrl_table2 import tuned

VAE = tuned(Run("coco", f"vae_mh {RATE}", "--fold5"))
TABLE = Table("jwae Table 4: COCO, 1K, mean of five folds", (recalls("folds5", ks=(1, 5)),),
              (Row("VSE++ (baseline)", (64.6, 90.0, 52.0, 84.3), RUNS["VSE++ (ResNet+GRU)"][1:]),
               Row("VAE-MH", (57.8, 86.9, 46.3, 80.3), (VAE,)),
               Row("jWAE-MH", (66.6, 91.4, 53.1, 84.5), RUNS["jWAE-MH (ResNet+GRU)"][1:])),
              f8k=True, notes=("The paper prints neither the weight of VAE-MH's KL nor where its "
                               "variances start. The weight is 1e-5 here, the best of 1e-3, "
                               "1e-4 and 1e-5 on Flickr8k's dev split with mean word vectors. "
                               "Variances start at exp(-6).",))

if __name__ == "__main__":
    main(TABLE, __doc__)
