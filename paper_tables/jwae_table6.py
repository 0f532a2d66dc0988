"""`jwae` Table 6: trained on COCO, tested on Flickr30K."""
from paper_tables.runner import Row, Table, main, recalls

BRANCHES = ("train.py --data_name coco_vgg_precomp --method embedding_network --learning_rate 1e-4 --num_epochs 20 "
            "--lr_update 1000 --text_features w2v")
VECTORS = ("train.py --data_name coco_vgg_precomp --method {} --learning_rate 1e-4 --no-feature_norm "
           "--text_features w2v")
SCAN = ("train.py --data_name coco_precomp --method {} --agg_func Mean --no-feature_norm --num_epochs 20 "
        "--learning_rate 5e-4 --lr_update 10")
TEST, TEST_REGIONS = "evaluate.py --data_name f30k_vgg_precomp", "evaluate.py --data_name f30k_precomp"
TABLE = Table(
    "jwae Table 6: COCO (train) to Flickr30K (test)", (recalls("full", ks=(5, 10)),),
    (Row("Emb. Network (VGG+w2v)", (33.7, 45.5, 8.4, 12.2), ((BRANCHES, TEST),)),
     Row("MSE (VGG+w2v)", (43.6, 56.9, 24.3, 34.2), ((VECTORS.format("mse"), TEST),)),
     Row("SCAN (ResNet+GRU)", (73.7, 82.6, 61.3, 72.4), ((SCAN.format("scan_t2i"), TEST_REGIONS),)),
     Row("jWAE-MSE (VGG+w2v)", (48.5, 60.0, 29.1, 40.7), ((VECTORS.format("jwae_mse"), TEST),)),
     Row("jWAE-MH (VGG+w2v)", (51.1, 63.3, 37.0, 49.1), ((VECTORS.format("jwae_mh_vectors"), TEST),)),
     Row("jWAE-MH+SCAN (ResNet+GRU)", (80.0, 87.0, 66.7, 75.9), ((SCAN.format("jwae_mh_scan"), TEST_REGIONS),))),
    notes=("The paper does not say which attention SCAN has. Ours attends from text to image.",))

if __name__ == "__main__":
    main(TABLE)
